package realserver

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Postgres starts a private PostgreSQL, durable as the server wants it, and returns its URL.
func Postgres(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		t.Fatal("PostgreSQL is not installed: run `make deps`")
	}
	sort.Strings(found)
	programs := filepath.Dir(found[len(found)-1])
	folder, err := os.MkdirTemp("", "solehold-go-pg-")
	if err != nil {
		t.Fatal(err)
	}
	attributes := unprivileged(t, folder)
	data, port := filepath.Join(folder, "data"), FreePort(t)
	command := func(name string, args ...string) *exec.Cmd {
		made := exec.Command(filepath.Join(programs, name), args...)
		made.Dir, made.SysProcAttr = folder, &syscall.SysProcAttr{Credential: attributes}
		return made
	}
	initdb := command("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "--locale=C.UTF-8")
	if output, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, output)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	postgres := Start(t, command("postgres", "-D", data, "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "dynamic_shared_memory_type=mmap"))
	t.Cleanup(func() { postgres.end(syscall.SIGINT) })
	WaitFor(t, "PostgreSQL to be ready", func() bool {
		text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
		lines := strings.Split(string(text), "\n")
		return err == nil && len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready"
	})
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres", port)
}

// unprivileged is a user for PostgreSQL, which refuses to run as root. It gets the folder.
func unprivileged(t testing.TB, folder string) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		account, err = user.Lookup("nobody")
	}
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	if err := os.Chown(folder, uid, gid); err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: false}
}
