package integration_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cafs/integration/harness"
)

// TestReshard kills 'cafs store reshard' at random moments and runs it again,
// with this function and that: what is half way is refused with a hint, and in
// the end all is there, and can be mounted.
func TestReshard(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	for i := range 1500 {
		write(t, m.Path(fmt.Sprint("d", i%10), fmt.Sprint(i)), fmt.Append(nil, "content of file ", i))
	}
	want := strings.TrimSpace(m.MustCafs("cid", m.Dir))
	m.Umount()
	blocks := func() []string {
		list := strings.Fields(m.MustCafs("block", "ls", "--repo", m.Repo))
		slices.Sort(list)
		return list
	}
	before := blocks()
	if len(before) < 1500 {
		t.Fatalf("%d blocks", len(before))
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	sharding := filepath.Join(m.Repo, "blocks", "SHARDING")
	killed := 0
	for run, fn := range []string{"prefix/5", "r122", "suffix/2", "r12"} {
		for range 3 {
			cmd := exec.CommandContext(t.Context(), harness.Binary(t), "store", "reshard", "--repo", m.Repo, fn)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			kill := time.AfterFunc(time.Duration(rng.Int64N(int64(150*time.Millisecond))), func() { cmd.Process.Kill() })
			err := cmd.Wait()
			kill.Stop()
			if err == nil {
				break // it was faster
			}
			text, err := os.ReadFile(sharding)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(text), "/cafs/reshard/") {
				continue // before it began, or after it was through
			}
			killed++
			if res := m.Cafs("block", "ls", "--repo", m.Repo); res.Code != 3 || !strings.Contains(res.Stderr, "cafs store reshard") {
				t.Fatalf("half way: exit %d, %s", res.Code, res.Stderr)
			}
		}
		if run%2 == 0 {
			continue // the next function finds it as it is
		}
		m.MustCafs("store", "reshard", "--repo", m.Repo, fn)
		text, err := os.ReadFile(sharding)
		if err != nil || !strings.HasSuffix(strings.TrimSpace(string(text)), "/"+fn) {
			t.Fatalf("%s: SHARDING is %q, %v", fn, text, err)
		}
		if after := blocks(); !slices.Equal(after, before) {
			t.Fatalf("%s: %d blocks, %d before", fn, len(after), len(before))
		}
	}
	t.Logf("%d kills were in the middle", killed)
	m.MustCafs("store", "reshard", "--repo", m.Repo, "next-to-last/2")
	m.MustCafs("verify", "--data", "--repo", m.Repo)
	m.Mount()
	if got := strings.TrimSpace(m.MustCafs("cid", m.Dir)); got != want {
		t.Errorf("the tree is %s, was %s", got, want)
	}
}
