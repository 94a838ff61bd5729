package realserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Root is the root of the repository.
func Root() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "../../../..")
}

// Binary is the program under test: SOLEHOLD_BIN, else what cargo built last for tests, else for release.
func Binary(t testing.TB) string {
	t.Helper()
	found, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func binary() (string, error) {
	if given := os.Getenv("SOLEHOLD_BIN"); given != "" {
		return given, nil
	}
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = filepath.Join(Root(), "target")
	}
	for _, profile := range []string{"debug", "release"} {
		built := filepath.Join(target, profile, "solehold")
		if _, err := os.Stat(built); err == nil {
			return built, nil
		}
	}
	return "", fmt.Errorf("there is no solehold in %s: run `make build`, or set SOLEHOLD_BIN", target)
}

// ForExamples starts a server without a test. It ends with the function that is returned, or with this process.
func ForExamples() (url string, stop func(), err error) {
	program, err := binary()
	if err != nil {
		return "", nil, err
	}
	command := exec.Command(program, "serve", "--listen", "127.0.0.1:0", "--engine", "memory:")
	command.Env, command.SysProcAttr = Environment(), &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if rest, isReady := strings.CutPrefix(lines.Text(), "solehold listening on "); isReady {
			url, _, _ = strings.Cut(rest, " ")
			go io.Copy(io.Discard, output)
			return url, stop, nil
		}
	}
	stop()
	return "", nil, fmt.Errorf("%s serve ended before it listened", program)
}

// Server is a running `solehold serve`.
type Server struct {
	*Process
	URL  string
	args []string
}

// Serve starts a server with a data folder of its own, unless the arguments name a store.
func Serve(t testing.TB, args ...string) *Server {
	t.Helper()
	if !slices.Contains(args, "--engine") && !slices.Contains(args, "--data-dir") {
		args = append(args, "--data-dir", filepath.Join(t.TempDir(), "data"))
	}
	return serve(t, FreePort(t), args)
}

func serve(t testing.TB, port int, args []string) *Server {
	t.Helper()
	all := append([]string{"serve", "--listen", fmt.Sprintf("127.0.0.1:%d", port)}, args...)
	server := &Server{Process: Start(t, exec.Command(Binary(t), all...)), args: args}
	rest := server.WaitLine(t, "solehold listening on ")
	server.URL, _, _ = strings.Cut(rest, " ")
	return server
}

// Again starts the server again after Kill, with the same data at the same address.
func (s *Server) Again(t testing.TB) *Server {
	t.Helper()
	_, port, err := net.SplitHostPort(s.URL[strings.Index(s.URL, "://")+3:])
	if err != nil {
		t.Fatal(err)
	}
	var number int
	fmt.Sscan(port, &number)
	return serve(t, number, s.args)
}

// Run runs a command of the program, and returns what it wrote to its standard output.
func Run(t testing.TB, args ...string) string {
	t.Helper()
	command := exec.Command(Binary(t), args...)
	command.Env = Environment()
	output, err := command.Output()
	if err != nil {
		t.Fatalf("solehold %v: %v", args, err)
	}
	return strings.TrimSpace(string(output))
}

// FreePort is a port that was free just now.
func FreePort(t testing.TB) int {
	t.Helper()
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	return probe.Addr().(*net.TCPAddr).Port
}
