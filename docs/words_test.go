package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// functionWords are words that say nothing as a name: "known" of what, "at" what?
var functionWords = strings.Fields(`all any as asked at back been behind both by due each ended enough every few given gone
	had has have here how in instead into is it its kept known late left less made many may meant more most much must
	never none of off on once one other others over own past rest said same seen so some such taken than that the their
	them then there these they this those told too under up was were what where which while who whole whom why within
	without`)

// Declared names are nouns and verbs. Few may be function words: methods that interfaces of
// other packages ask for, such as Is and As, and exported fields that read well with their type.
func TestNamesAreNounsAndVerbs(t *testing.T) {
	declared := 0
	var wrong []string
	files := token.NewFileSet()
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if base := d.Name(); d.IsDir() && (base == "testdata" || base == "bin" || base == "node_modules" || len(base) > 2 && base[0] == '.') {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			return err
		}
		for _, id := range declarations(file) {
			declared++
			if slices.Contains(functionWords, strings.ToLower(id.Name)) {
				wrong = append(wrong, files.Position(id.Pos()).String()+" "+id.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if limit := declared / 200; len(wrong) > limit {
		t.Errorf("%d of %d declared names are function words; at most %d may be:\n%s", len(wrong), declared, limit, strings.Join(wrong, "\n"))
	}
}

// declarations returns the names that file declares.
func declarations(file *ast.File) []*ast.Ident {
	var names []*ast.Ident
	addExpr := func(exprs ...ast.Expr) {
		for _, e := range exprs {
			if id, ok := e.(*ast.Ident); ok && id.Name != "_" {
				names = append(names, id)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			names = append(names, n.Name)
		case *ast.TypeSpec:
			names = append(names, n.Name)
		case *ast.Field:
			names = append(names, n.Names...)
		case *ast.ValueSpec:
			names = append(names, n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				addExpr(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				addExpr(n.Key, n.Value)
			}
		}
		return true
	})
	return names
}
