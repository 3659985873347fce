package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cafs/integration/harness"
)

// TestReadme runs the tour of README.md and compares what it shows with what
// happens, but for the process id and the home directory.
func TestReadme(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedCommand(t, "getfattr")
	m := harness.New(t, harness.Options{}) // for the gate and the binary only
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "```console\n")
	tour, _, end := strings.Cut(rest, "```")
	if !ok || !end {
		t.Fatal("no tour in README.md")
	}
	home := harness.Scratch(t)
	bin := filepath.Join(home, "bin")
	if err := os.Symlink(harness.Binary(t), filepath.Join(mkdir(t, bin), "cafs")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Cafs("umount", filepath.Join(home, "mnt")) })
	pid := regexp.MustCompile(`pid [0-9]+`)
	var got strings.Builder
	for line := range strings.Lines(tour) {
		script, isCommand := strings.CutPrefix(line, "$ ")
		if !isCommand {
			continue
		}
		cmd := exec.Command("bash", "-ec", script)
		cmd.Dir = home
		cmd.Env = append(os.Environ(), "HOME="+home, "CAFS_REPO=", "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := os.CreateTemp(home, "out") // a pipe would stay open in the daemon's hands
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v", script, err)
		}
		b, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		out.Close()
		shown := strings.ReplaceAll(pid.ReplaceAllString(string(b), "pid 4711"), home, "/home/you")
		got.WriteString(line + shown)
	}
	if got.String() != tour {
		t.Errorf("README.md shows\n%s\nand this happens:\n%s", tour, got.String())
	}
}
