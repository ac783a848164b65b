package docs_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weir-go/weir"

// pkg is a package of the repository.
type pkg struct {
	name    string
	imports []string // without the tests' imports
}

// house returns the packages of all modules of the repository, by their directories.
func house(t *testing.T) map[string]*pkg {
	t.Helper()
	all := make(map[string]*pkg)
	files := token.NewFileSet()
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if base := d.Name(); d.IsDir() && (base == "testdata" || base == "bin" || base == "node_modules" || len(base) > 2 && base[0] == '.') {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir := path.Dir(strings.TrimPrefix(filepath.ToSlash(name), "../")) // "." for the root
		if all[dir] == nil {
			all[dir] = &pkg{name: file.Name.Name}
		}
		for _, i := range file.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			all[dir].imports = append(all[dir].imports, imported)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A package imports only packages below it in CONTRIBUTING's list of floors, and libraries
// that the list of libraries permits.
func TestImportsGoDown(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	floors, users := rows(t, string(text), "| floor |"), rows(t, string(text), "| library |")
	floorOf := make(map[string]int)
	for i, row := range floors {
		for _, entry := range row.second {
			floorOf[entry] = i + 1
		}
	}
	libraries := make(map[string][]string)
	for _, row := range users {
		for _, library := range row.first {
			libraries[library] = row.second
		}
	}
	// find returns the entry of the list for dir, or for a directory above it.
	find := func(dir string) (entry string, floor int) {
		for entry = dir; ; entry = path.Dir(entry) {
			if floor = floorOf[entry]; floor > 0 && (entry != "." || dir == ".") {
				return entry, floor
			}
			if entry == "." {
				return "", 0
			}
		}
	}
	packages := house(t)
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		entry, floor := find(dir)
		if floor == 0 {
			t.Errorf("%s is on no floor of CONTRIBUTING.md", dir)
			continue
		}
		for _, imported := range packages[dir].imports {
			if below, ok := strings.CutPrefix(imported+"/", module+"/"); ok {
				below = path.Clean(below)
				if other, f := find(below); f <= floor && other != entry {
					t.Errorf("%s, on floor %d, imports %s, on floor %d", dir, floor, below, f)
				}
				continue
			}
			for library, users := range libraries {
				if (imported == library || strings.HasPrefix(imported, library+"/")) && floor > 1 && !slices.Contains(users, entry) {
					t.Errorf("%s imports %s, which is for %v", dir, library, users)
				}
			}
		}
	}
	for entry := range floorOf {
		if _, err := os.Stat(filepath.Join("..", entry)); err != nil {
			t.Errorf("CONTRIBUTING.md names %s: %v", entry, err)
		}
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(mod), "\n") {
		fields := strings.Fields(line)
		if len(fields) != 2 || !strings.HasPrefix(fields[1], "v") { // a version
			continue
		}
		if _, ok := libraries[fields[0]]; !ok {
			t.Errorf("CONTRIBUTING.md does not say which packages use %s, which go.mod requires", fields[0])
		}
	}
}

type row struct{ first, second []string } // the code in its cells

// rows returns the rows of the table with the first line head.
func rows(t *testing.T, text, head string) []row {
	t.Helper()
	_, table, found := strings.Cut(text, "\n"+head)
	if !found {
		t.Fatalf("there is no table %q", head)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	code := regexp.MustCompile("`([^`]+)`")
	var all []row
	for _, line := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(line, "|")
		var r row
		for _, match := range code.FindAllStringSubmatch(cells[1], -1) {
			r.first = append(r.first, match[1])
		}
		for _, match := range code.FindAllStringSubmatch(cells[2], -1) {
			r.second = append(r.second, match[1])
		}
		all = append(all, r)
	}
	return all
}
