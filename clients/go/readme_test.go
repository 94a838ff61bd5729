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

// build builds the Go example of a document as it stands there, in a module of its own that is made as the README says,
// and returns the program.
func build(t *testing.T, document string) string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(text)
	edit := regexp.MustCompile(`(?m)^go (mod edit .*)=\.\./solehold/clients/go$`).FindSubmatch(readme)
	if example == nil || edit == nil {
		t.Fatalf("%s has no example, or the README does not say how to install the module", document)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "main.go"), example[1], 0o666); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mod", "init", "example"},
		strings.Fields(string(edit[1]) + "=" + here),
		{"vet", "."},
		{"build", "-o", "example", "."},
	} {
		command := exec.Command("go", args...)
		command.Dir = folder
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s: go %v: %v\n%s", document, args, err, output)
		}
	}
	return filepath.Join(folder, "example")
}

func run(t *testing.T, program, folder, server string) string {
	t.Helper()
	command := exec.Command(program)
	command.Dir = folder
	command.Env = append(realserver.Environment(), "SOLEHOLD_SERVER="+server)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return string(output)
}

func TestTheExampleOfTheReadmeRuns(t *testing.T) {
	t.Parallel()
	example, server := build(t, "README.md"), realserver.Serve(t)
	for _, frames := range []string{"123", "456"} {
		output := run(t, example, "", server.URL)
		var shown string
		for _, frame := range regexp.MustCompile(`frame (\d) with token \d+`).FindAllStringSubmatch(output, -1) {
			shown += frame[1]
		}
		if shown != frames || !strings.Contains(output, "\nthe lock is ours: true\n") {
			t.Errorf("not frames %s:\n%s", frames, output)
		}
	}
}

// The guide's example names a fixed address, so it is built and not run.
func TestTheExampleOfTheClusterGuideBuilds(t *testing.T) {
	t.Parallel()
	build(t, "../../docs/guides/cluster.md")
}
