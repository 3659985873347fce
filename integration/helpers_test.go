package integration_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// write makes a file, and the folders above it.
func write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// wantFile checks the content of a file.
func wantFile(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that differ from the %d that were written", path, len(got), len(want))
	}
}

func mkdir(t testing.TB, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// command runs a program in a folder and returns its output; it must succeed.
func command(t testing.TB, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// stream returns n bytes that depend on seed and never repeat: the generator
// of linksys/unixfs/testdata/cids.tsv.
func stream(seed uint64, n int) []byte {
	b := make([]byte, 0, n+8)
	for i := uint64(0); len(b) < n; i++ {
		b = binary.BigEndian.AppendUint64(b, (i+1+seed)*0x9E3779B97F4A7C15)
	}
	return b[:n]
}

// cidOf returns the CID that the xattr of a path answers.
func cidOf(t testing.TB, path string) string {
	t.Helper()
	b := make([]byte, 256)
	n, err := unix.Lgetxattr(path, "ipfs.cid", b)
	if err != nil {
		t.Fatalf("ipfs.cid of %s: %v", path, err)
	}
	return string(b[:n])
}
