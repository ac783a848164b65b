package chromium

import (
	"os"
	"path/filepath"
	"testing"
)

func TestEndLeavesNoFiles(t *testing.T) {
	temp, err := os.MkdirTemp("/tmp", "weir-chromium-") // the path of Chromium's socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	t.Setenv("TMPDIR", temp)
	_, end, err := Start(filepath.Join(temp, "profile"), 800, 600)
	if err != nil {
		t.Fatal(err)
	}
	end()
	files, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name() != "profile" {
			t.Errorf("Chromium left %s in the temporary directory", f.Name())
		}
	}
}
