package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/urfave/cli/v2"

	"cafs/mount/api"
	"cafs/mount/daemon"
	"cafs/mount/repo"
	"cafs/store"
)

func TestArrange(t *testing.T) {
	app := newApp()
	for _, c := range []struct{ in, want string }{
		{"cafs", "cafs"},
		{"cafs --help", "cafs --help"},
		{"cafs nosuch -x", "cafs nosuch -x"},
		{"cafs mount DIR", "cafs mount -- DIR"},
		{"cafs mount DIR -b --repo R", "cafs mount -b --repo R -- DIR"},
		{"cafs mount --repo=R DIR", "cafs mount --repo=R -- DIR"},
		{"cafs mount -bR R DIR", "cafs mount -b -R R -- DIR"},
		{"cafs mount DIR -v -- ls -l", "cafs mount -v -- DIR -- ls -l"},
		{"cafs mount -- -dir -- ls --", "cafs mount -- -dir -- ls --"},
		{"cafs mount --bogus DIR", "cafs mount --bogus -- DIR"},
		{"cafs add -rq a b", "cafs add -r -q -- a b"},
		{"cafs add a -q -", "cafs add -q -- a -"},
		{"cafs add -- -r", "cafs add -- -r"},
		{"cafs add a -- -r --", "cafs add -- a -r --"},
		{"cafs block get CID -R R", "cafs block get -R R -- CID"},
		{"cafs block", "cafs block"},
		{"cafs ls -help", "cafs ls -help"},
		{"cafs ls -l0 CID", "cafs ls -l -0 -- CID"},
	} {
		got, err := arrange(app, strings.Fields(c.in))
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v, want %q", c.in, strings.Join(got, " "), err, c.want)
		}
	}
	if _, err := arrange(app, []string{"cafs", "ls", "CID", "--repo"}); exitCode(err) != exitUsage {
		t.Errorf("a flag without its value: %v", err)
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                  "",
		"plain name.txt":    "plain name.txt",
		"été 日本 🎉":          "été 日本 🎉",
		`back\slash`:        `back\slash`,
		"a\nb":              `a\nb`,
		"\x1b[31mred\x1b[m": `\x1b[31mred\x1b[m`,
		"\x7f\x00\r\t":      `\x7f\x00\r\t`,
		"\xff\xfe":          `\xff\xfe`,
		"caf\xe9":           `caf\xe9`,
		"gpj\u202eexe":      `gpj\u202eexe`,
		"zero\u200bwidth":   `zero\u200bwidth`,
		"no\u00a0break":     `no\u00a0break`,
		"c1\u009bcsi":       `c1\u009bcsi`,
		"\n\\n":             `\n\\n`, // told apart from "\n\n"
		"�":                 "�",
	} {
		if got := escape(in); got != want {
			t.Errorf("escape(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzEscape: nothing that a terminal acts upon comes through, and different
// names stay different.
func FuzzEscape(f *testing.F) {
	f.Add("a\nb", `a\nb`)
	f.Add("\xff", `\xff`)
	f.Add(`a\`, "\x1b")
	f.Fuzz(func(t *testing.T, a, b string) {
		got := escape(a)
		if strings.IndexFunc(got, unsafe) >= 0 || !bytes.Equal([]byte(got), []byte(strings.ToValidUTF8(got, ""))) {
			t.Errorf("escape(%q) = %q", a, got)
		}
		if a != b && got == escape(b) && strings.IndexByte(a+b, '\\') < 0 {
			t.Errorf("%q and %q both become %q", a, b, got)
		}
	})
}

func TestExitCodes(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("two: %w", fmt.Errorf("one: %w", err)) }
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{usagef("x"), 2},
		{repo.ErrNotRepo, 3},
		{repo.ErrVersion, 3},
		{&repo.LockedError{}, 4},
		{errDamage, 5},
		{&store.CorruptError{}, 5},
		{repo.ErrDamaged, 5},
		{daemon.ErrMountpoint, 6},
		{fmt.Errorf("%w: %w", daemon.ErrMountpoint, fs.ErrNotExist), 6},
		{repo.ErrNested, 6},
		{daemon.ErrNoFUSE, 6},
		{&daemon.BusyError{}, 7},
		{&api.Error{Kind: "busy"}, 7},
		{fs.ErrNotExist, 8},
		{store.ErrNotFound, 8},
		{&api.Error{Kind: "missing-block"}, 8},
		{daemon.ErrNotMounted, 8},
		{syscall.ENOSPC, 9},
		{store.ErrFull, 9},
		{syscall.EROFS, 9},
		{repo.ErrUnclean, 10},
		{fmt.Errorf("%w: %w", daemon.ErrLosses, syscall.EIO), 10},
		{exitStatus(42), 42},
		{&failure{Code: 6}, 6},
		{repo.Hint(repo.ErrNotRepo, "make one"), 3},
	} {
		if got := exitCode(c.err); got != c.code {
			t.Errorf("%v: code %d, want %d", c.err, got, c.code)
		}
		if c.err != nil && exitCode(wrap(c.err)) != c.code {
			t.Errorf("%v, wrapped: code %d, want %d", c.err, exitCode(wrap(c.err)), c.code)
		}
	}
}

// TestExitCodesDocumented: the table for users has exactly the codes there are.
func TestExitCodesDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../doc/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(string(doc), -1) {
		n, _ := strconv.Atoi(m[1])
		got = append(got, n)
	}
	want := []int{0, exitOther, exitUsage, exitNoRepo, exitLocked, exitDamaged, exitMount, exitBusy, exitNotFound, exitNoSpace, exitNotDurable}
	if !slices.Equal(got, want) {
		t.Errorf("doc/exit-codes.md has %v, the program %v", got, want)
	}
}

func TestReport(t *testing.T) {
	const k = "bafybeihyi5ns5pp57hyhwpyr5kbw4hh7bmesyi7u5wsa4cwvjzcdguae7e"
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{exitStatus(3), ""},
		{fmt.Errorf("daemon: cannot mount at /m: mount: %w", syscall.EPERM), "cafs: cannot mount at /m: operation not permitted\n"},
		{fmt.Errorf("%s/x: linksys: block %s: store: get %s: %w", k, k, k, store.ErrNotFound), "cafs: " + k + "/x: block " + k + ": block not found\n"},
		{repo.Hint(errors.New("no\nway"), "try \x1b else"), "cafs: no; way\ncafs: hint: try \\x1b else\n"},
		{errors.Join(repo.Hint(errors.New("a"), "b"), repo.Hint(errors.New("c"), "d")), "cafs: a; c\ncafs: hint: b\ncafs: hint: d\n"},
		{&api.Error{Msg: "far", Hint: "away"}, "cafs: far\ncafs: hint: away\n"},
		{&failure{Msg: "m", Hints: []string{"h"}, Code: 6}, "cafs: m\ncafs: hint: h\n"},
	} {
		var out bytes.Buffer
		report(&out, c.err)
		if out.String() != c.want {
			t.Errorf("%v:\n%s want:\n%s", c.err, out.String(), c.want)
		}
	}
}

// TestHelp: every command says what it does, and shows how.
func TestHelp(t *testing.T) {
	app := newApp()
	seen := 0
	walkCommands(app.Commands, func(c *cli.Command) {
		seen++
		shown := regexp.MustCompile(`cafs (block |dag |snapshot |pin |store )?` + regexp.QuoteMeta(c.Name) + `\b`)
		if c.Usage == "" || !shown.MatchString(c.Description) {
			t.Errorf("%s: no usage or no example", c.Name)
		}
		for _, f := range c.Flags {
			if d, ok := f.(cli.DocGenerationFlag); ok && d.GetUsage() == "" && f.Names()[0] != "ready-fd" {
				t.Errorf("%s: the flag %s says nothing", c.Name, f.Names()[0])
			}
		}
	})
	if seen < 14 {
		t.Errorf("only %d commands", seen)
	}
}

func TestParsePath(t *testing.T) {
	const v1, v0 = "bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am", "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH"
	for in, want := range map[string][2]string{
		v1:                         {v1, ""},
		v0:                         {v0, ""},
		v1 + "/a/b":                {v1, "a/b"},
		"/ipfs/" + v0 + "/a":       {v0, "a"},
		"ipfs://" + v1 + "/a":      {v1, "a"},
		v1 + "/":                   {v1, ""},
		strings.ToUpper("b")[:0]:   {},
		"nonsense":                 {},
		"/ipfs":                    {},
		v1[:20]:                    {},
		"../../etc/passwd":         {},
		"/ipns/example.org/readme": {},
	} {
		c, path, err := parsePath(in)
		if want[0] == "" {
			if exitCode(err) != exitUsage {
				t.Errorf("%q: %v, %v, want a usage error", in, c, err)
			}
		} else if err != nil || c.String() != want[0] || path != want[1] {
			t.Errorf("%q: %s, %q, %v", in, c, path, err)
		}
	}
}

func TestMountFlags(t *testing.T) {
	var got mountOptions
	parse := func(line string) error {
		app := newApp()
		find(app.Commands, "mount").Action = func(c *cli.Context) (err error) {
			got, err = mountFlags(c)
			return err
		}
		args, err := arrange(app, strings.Fields("cafs mount "+line))
		if err == nil {
			err = app.Run(args)
		}
		return err
	}
	for _, line := range []string{"", "a b", "a b -- c", "a --", "-b a -- ls", "a --dirty-limit 1", "a --dirty-limit x", "a --dirty-limit 1PB", "a --commit-interval 0s", "a --commit-interval -1s", "a --nosuch", "-- ls"} {
		if err := parse(line); exitCode(err) != exitUsage && line != "-- ls" {
			t.Errorf("mount %s: %v, want a usage error", line, err)
		}
	}
	if err := parse("m --repo r --dirty-limit 64MiB --commit-interval 2s --profile unixfs-v0-2015 --allow-other -v"); err != nil {
		t.Fatal(err)
	}
	first := got
	// What the background process is told must mean the same.
	if err := parse(strings.Join(first.args()[1:], " ")); err != nil {
		t.Fatal(err)
	}
	got.readyFD = first.readyFD
	if fmt.Sprint(got) != fmt.Sprint(first) || got.dirtyLimit != 64<<20 || got.dir != "m" {
		t.Errorf("%+v became %+v", first, got)
	}
	if err := parse("m -- sh -c x"); err != nil || fmt.Sprint(got.command) != "[sh -c x]" || got.dir != "m" {
		t.Errorf("a command: %+v, %v", got, err)
	}
}
