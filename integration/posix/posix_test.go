package posix_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"cafs/integration/harness"
	"cafs/integration/posix"
)

var seedFlag = flag.Int64("seed", 0, "seed of the random cases; 0: a new one, which is printed")

func TestMain(m *testing.M) {
	flag.Parse()
	harness.Main(m)
}

// TestCalls compares calls with tmpfs: each call on each type by each user in
// an ordinary situation, then random situations. Now and then the mount is made
// anew, and shows what the calls left behind as before.
func TestCalls(t *testing.T) {
	harness.NeedRoot(t)
	m := harness.New(t, harness.Options{Args: []string{"--allow-other", "--allow-suid", "--allow-dev"}})
	trusted := harness.Tmpfs(t)
	seed := *seedFlag
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Logf("seed %d (repeat with -seed %d)", seed, seed)
	r := rand.New(rand.NewPCG(uint64(seed), 2))
	pick := func(n int) int { return r.IntN(n) }
	calls := posix.CallNames()
	var cases []posix.Case
	for _, call := range calls {
		for _, typ := range posix.Types {
			for _, user := range posix.Users[:3] {
				cases = append(cases, posix.Case{Call: call, Type: typ, Mode: 0o644, Owner: harness.UserA,
					ParentMode: 0o755, ParentUid: harness.UserA, User: user})
			}
		}
	}
	for range harness.Scale(3_000, 500_000) {
		cases = append(cases, posix.Case{
			Call: calls[pick(len(calls))], Type: posix.Types[pick(len(posix.Types))],
			Mode: posix.Modes[pick(len(posix.Modes))], Owner: posix.Owners[pick(3)],
			ParentMode: posix.ParentModes[pick(len(posix.ParentModes))], ParentUid: posix.Owners[pick(3)],
			Acl: posix.Acls[pick(len(posix.Acls))], User: posix.Users[pick(len(posix.Users))],
		})
	}
	// A chown to nobody new, of a program with suid or sgid, by somebody who does
	// not own it: the kernel leaves the answer to the daemon, which cannot tell it
	// from a call that must succeed (mount, clearPrivileges).
	cases = slices.DeleteFunc(cases, func(c posix.Case) bool {
		return (c.Call == "chown to nobody new" || c.Call == "fchown to itself") && !c.Owns() && c.Mode&0o6000 != 0
	})
	failed, remounts, done := 0, 0, 0
	for batch := range slices.Chunk(cases, 200) {
		roots := []string{trusted, m.Dir}
		dir := func(root string, i int) string { return fmt.Sprintf("%s/%d", root, i) }
		for i, c := range batch {
			for _, root := range roots {
				if err := c.Prepare(dir(root, i)); err != nil {
					t.Fatalf("%s in %s: %v", c, root, err)
				}
			}
		}
		posix.Tick()
		for i, c := range batch {
			want, got := c.Run(dir(trusted, i)), c.Run(dir(m.Dir, i))
			if want != got {
				t.Errorf("%s:\n  trusted: %s\n  tested:  %s", c, want, got)
				if failed++; failed > 30 {
					t.Fatal("too many differences")
				}
			}
		}
		if n := len(cases) / 200 / 5; remounts*n*200 <= done && !t.Failed() { // at the first, and four times more
			remounts++
			before := make([]string, len(batch))
			for i := range batch {
				before[i] = posix.Look(dir(m.Dir, i))
			}
			m.Remount()
			for i, c := range batch {
				if now := posix.Look(dir(m.Dir, i)); now != before[i] {
					t.Errorf("%s, remounted:\n%s\nbefore:\n%s", c, now, before[i])
				}
			}
		}
		done += len(batch)
		for i := range batch {
			for _, root := range roots {
				if err := os.RemoveAll(dir(root, i)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	t.Logf("%d cases, %d remounts", len(cases), remounts)
}
