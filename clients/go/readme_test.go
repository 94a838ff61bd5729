package solehold_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"solehold.dev/solehold/internal/realserver"
)

// The example of the README runs as it stands there, in a module of its own that is made as the README says.
func TestTheExampleOfTheReadmeRuns(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if example == nil {
		t.Fatal("the README has no example")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "main.go"), example[1], 0o666); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		command := exec.Command(name, args...)
		command.Dir = folder
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, output)
		}
		return string(output)
	}
	run("go", "mod", "init", "example")
	edit := regexp.MustCompile(`(?m)^go (mod edit .*)=\.\./solehold/clients/go$`).FindSubmatch(readme)
	if edit == nil {
		t.Fatal("the README does not say how to install the module")
	}
	run("go", strings.Fields(string(edit[1])+"="+here)...)
	run("go", "build", "-o", "example", ".")
	server := realserver.Serve(t)
	for _, frames := range []string{"123", "456"} {
		command := exec.Command(filepath.Join(folder, "example"))
		command.Env = append(realserver.Environment(), "SOLEHOLD_SERVER="+server.URL)
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		var shown string
		for _, frame := range regexp.MustCompile(`frame (\d) with token \d+`).FindAllSubmatch(output, -1) {
			shown += string(frame[1])
		}
		if shown != frames || !strings.Contains(string(output), "\nthe lock is ours: true\n") {
			t.Errorf("not frames %s:\n%s", frames, output)
		}
	}
}
