package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var named = regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)

// The names of packages that pages mention exist.
func TestNamesExist(t *testing.T) {
	names := make(map[string]map[string]bool)
	for dir, p := range house(t) {
		if p.name != "main" && !strings.Contains(dir, "internal/") && !strings.HasPrefix(dir, "cmd/") {
			names[p.name] = exported(t, filepath.Join("..", dir))
		}
	}
	inline := regexp.MustCompile("`[^`\n]+`")
	found := 0
	all := pages(t)
	delete(all, "../CHANGELOG.md") // it also mentions removed names
	for page, text := range all {
		for _, code := range inline.FindAllString(goBlock.ReplaceAllString(text, ""), -1) {
			for _, match := range named.FindAllStringSubmatch(code, -1) {
				known := names[match[1]]
				if known == nil {
					continue
				}
				found++
				if !known[match[2]] || match[3] != "" && !known[match[2]+"."+match[3]] {
					t.Errorf("%s says %s, which does not exist", page, match[0])
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("%d names were found in the pages; want 100 at least", found)
	}
}

// exported returns the exported names of the package in dir. Names of fields and methods
// follow their type's and a dot.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	files, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[receiverOf(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					addSpec(names, spec)
				}
			}
		}
	}
	return names
}

// receiverOf returns the receiver type of d and a dot, or "".
func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if ident, ok := of.(*ast.Ident); ok {
		return ident.Name + "."
	}
	return ""
}

func addSpec(names map[string]bool, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			names[name.Name] = true
		}
	case *ast.TypeSpec:
		names[spec.Name.Name] = true
		var fields *ast.FieldList
		switch of := spec.Type.(type) {
		case *ast.StructType:
			fields = of.Fields
		case *ast.InterfaceType:
			fields = of.Methods
		default: // an alias of a type in another package
			return
		}
		for _, field := range fields.List {
			for _, name := range field.Names {
				names[spec.Name.Name+"."+name.Name] = true
			}
		}
	}
}
