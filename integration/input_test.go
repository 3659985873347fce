package integration_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cafs/integration/harness"
)

// everywhere runs check at once, after the kernel's caches were dropped, and
// after a remount.
func everywhere(t *testing.T, m *harness.Mount, check func(t *testing.T)) {
	t.Helper()
	t.Run("at once", check)
	if harness.DropCaches() {
		t.Run("caches dropped", check)
	}
	m.Remount()
	t.Run("remounted", check)
}

// source copies part of Go's own source tree and a zoo into one folder, with
// in the long form all of Go's source, a clone of this project and a file of
// 2 GiB.
func source(t *testing.T) string {
	t.Helper()
	dir := mkdir(t, filepath.Join(harness.Scratch(t), "source"))
	zoo(t, filepath.Join(dir, "zoo"))
	src := filepath.Join(strings.TrimSpace(command(t, "/", "go", "env", "GOROOT")), "src")
	if harness.Long() {
		command(t, "/", "cp", "-a", src, dir)
		write(t, filepath.Join(dir, "large"), stream(9, 2<<30))
		root, err := filepath.Abs("..")
		if err != nil {
			t.Fatal(err)
		}
		command(t, dir, "git", "-c", "safe.directory=*", "clone", "-q", "file://"+root, "project")
		return dir
	}
	for _, name := range []string{"net", "os", "go", "archive", "compress"} {
		command(t, "/", "cp", "-a", filepath.Join(src, name), dir)
	}
	return dir
}

// TestCopies: a real tree goes in by cp, tar and rsync and comes out as it
// was; a second rsync finds nothing to send.
func TestCopies(t *testing.T) {
	harness.NeedCommand(t, "rsync", "tar", "diff")
	m := harness.New(t, harness.Options{})
	src := source(t)
	ways := map[string]string{
		"cp":    `cp -a "$SRC" "$DST"`,
		"tar":   `mkdir "$DST"; tar -C "$SRC" --xattrs -cf - . | tar -C "$DST" --xattrs --numeric-owner -xpf -`,
		"rsync": `rsync -aHX --numeric-ids "$SRC/" "$DST/"; [ -z "$(rsync -aHX --numeric-ids --out-format=%n "$SRC/" "$DST/")" ]`,
	}
	for name, script := range ways {
		bash(t, "/", script, "SRC="+src, "DST="+m.Path(name))
	}
	everywhere(t, m, func(t *testing.T) {
		for name := range ways {
			same(t, src, m.Path(name))
			// Devices and FIFOs are not for diff.
			bash(t, "/", `diff -r --no-dereference --exclude=fifo --exclude=chr --exclude=blk "$SRC" "$DST"
				[ -z "$(rsync -naHXc --delete --numeric-ids --out-format=%n "$SRC/" "$DST/")" ]`, "SRC="+src, "DST="+m.Path(name))
		}
	})
	t.Run("removed", func(t *testing.T) {
		for name := range ways {
			command(t, "/", "rm", "-rf", m.Path(name))
		}
		if left, err := os.ReadDir(m.Dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v %v", left, err)
		}
	})
}

// TestLargeFile: a file much larger than the dirty limit goes in and out.
func TestLargeFile(t *testing.T) {
	m := harness.New(t, harness.Options{Args: []string{"--dirty-limit", "32MiB"}})
	size := harness.Scale(192<<20, 2<<30) + 12345
	src := filepath.Join(harness.Scratch(t), "large")
	write(t, src, stream(4, size))
	command(t, "/", "cp", src, m.Path("cp"))
	command(t, "/", "dd", "if="+src, "of="+m.Path("dd"), "bs=64k", "conv=fsync", "status=none")
	everywhere(t, m, func(t *testing.T) {
		command(t, "/", "cmp", src, m.Path("cp"))
		command(t, "/", "cmp", src, m.Path("dd"))
	})
}

// TestGit: a repository lives on the mount: made there and cloned to there.
func TestGit(t *testing.T) {
	harness.NeedCommand(t, "git")
	m := harness.New(t, harness.Options{})
	env := []string{"GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b",
		fmt.Sprintf("N=%d", harness.Scale(300, 10_000))}
	bash(t, m.Dir, `git init -q made; cd made; mkdir d{1..10}
		for i in $(seq $N); do echo $i >d$((i % 10 + 1))/$i; done; git add .; git commit -qm one
		git mv d1 moved; sed -i s/1/2/ d2/*; rm -r d3; git add -A; git commit -qm two
		git worktree add -q ../tree HEAD~1; [ $(ls ../tree/d3 | wc -l) = $((N / 10)) ]
		git gc -q --prune=now; git fsck --strict; git checkout -q HEAD~1; git status --porcelain >../st; [ ! -s ../st ]
		git clone -q . ../cloned; cd ../cloned; git fsck --strict; git log --oneline | wc -l; git repack -adq; git fsck`, env...)
	everywhere(t, m, func(t *testing.T) {
		bash(t, m.Dir, `for r in made cloned; do git -C $r fsck --strict; [ -z "$(git -C $r status --porcelain)" ]; done; [ $(git -C made rev-list --count --all) = 2 ]`, env...)
	})
	t.Run("ten thousand objects", func(t *testing.T) {
		bash(t, m.Dir, `git init -q --bare -b main $DISK/src
			{ for i in $(seq 9900); do printf 'blob\nmark :%d\ndata <<E\nobject %d\nE\n' $i $i; done
			printf 'commit refs/heads/main\ncommitter a <a@b> 0 +0000\ndata 0\n'
			for i in $(seq 9900); do printf 'M 644 :%d d%d/%d\n' $i $((i % 100)) $i; done; } | git --git-dir $DISK/src fast-import --quiet
			git clone -q file://$DISK/src big; cd big; git count-objects -v >$DISK/n; grep -q "in-pack: 10002" $DISK/n; [ $(git ls-files | wc -l) = 9900 ]
			git worktree add -q --detach ../beside; echo more >>../beside/d7/7; git -C ../beside commit -qam more; git merge -q $(git -C ../beside rev-parse HEAD)
			git gc -q --prune=now; git fsck --strict; [ -z "$(git status --porcelain)" ]; [ "$(tail -1 d7/7)" = more ]; git worktree remove ../beside; [ ! -e ../beside ]`,
			append(env, "DISK="+harness.Scratch(t))...)
	})
	t.Run("of this project", func(t *testing.T) {
		if _, err := os.Stat("../.git"); err != nil {
			t.Skip("not in a git repository")
		}
		root, err := filepath.Abs("..")
		if err != nil {
			t.Fatal(err)
		}
		bash(t, m.Dir, `git -c safe.directory='*' clone -q "file://$SRC" project; git -C project fsck; [ -z "$(git -C project status --porcelain)" ]`, append(env, "SRC="+root)...)
	})
}

// TestSqlite: four processes write one database, with a rollback journal and
// with a write-ahead log, while one reads; nothing is lost.
func TestSqlite(t *testing.T) {
	harness.NeedCommand(t, "sqlite3")
	m := harness.New(t, harness.Options{})
	n := harness.Scale(25, 1000)
	for _, mode := range []string{"delete", "wal"} {
		db := m.Path(mode + ".db")
		command(t, "/", "sqlite3", db, "pragma journal_mode="+mode+"; create table t(writer, i, pad);")
		var wg sync.WaitGroup
		errs := make([]error, 5)
		for w := range errs {
			var sql strings.Builder
			for i := range n {
				if w < 4 {
					fmt.Fprintf(&sql, "begin immediate; insert into t values(%d, %d, hex(randomblob(500))); commit;\n", w, i)
				} else {
					fmt.Fprintln(&sql, "select count(*) from t; pragma quick_check;")
				}
			}
			wg.Go(func() {
				cmd := exec.Command("sqlite3", "-bail", "-cmd", ".timeout 60000", db)
				cmd.Stdin = strings.NewReader(sql.String())
				if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("rror")) {
					errs[w] = fmt.Errorf("writer %d: %v: %s", w, err, out)
				}
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
	}
	everywhere(t, m, func(t *testing.T) {
		for _, mode := range []string{"delete", "wal"} {
			out := command(t, "/", "sqlite3", m.Path(mode+".db"), "pragma integrity_check; select count(*), count(distinct writer || '-' || i) from t; pragma journal_mode;")
			if want := fmt.Sprintf("ok\n%d|%d\n%s\n", 4*n, 4*n, mode); out != want {
				t.Errorf("%s: %q, must be %q", mode, out, want)
			}
		}
	})
}

// TestPrograms: what else people run in the first hour.
func TestPrograms(t *testing.T) {
	m := harness.New(t, harness.Options{})
	rows := []struct {
		name   string
		needs  []string
		script string
		long   bool // takes too long for every run
	}{
		{"rsync --inplace and --append", []string{"rsync"}, `head -c 3000000 /dev/urandom >src; rsync --inplace src dst
			printf changed | dd of=src bs=1 seek=1500000 conv=notrunc status=none; rsync --inplace -I src dst; cmp src dst
			head -c 100000 /dev/urandom >>src; rsync --append src dst; cmp src dst; rsync --append-verify src dst; cmp src dst`, false},
		{"rsync -A", []string{"rsync", "setfacl"}, `mkdir s; echo x >s/f; setfacl -m u:61001:rw s/f; setfacl -d -m g:61002:rx s; rsync -aHAX s/ d/
			diff <(cd s; getfacl -Rn .) <(cd d; getfacl -Rn .); [ -z "$(rsync -aHAX --out-format=%n s/ d/)" ]`, false},
		{"vim", []string{"vim"}, `for b in yes no auto; do echo one >f; vim -es -u NONE -c "set backupcopy=$b backup backupdir=. backupskip=" -c 'norm Atwo' -c wq f </dev/null >/dev/null; [ "$(cat f)" = onetwo ]; done; [ "$(cat f~)" = one ]`, false},
		{"go build with its caches", nil, `mkdir src cache tmp; cd src; printf 'module x\ngo 1.24\n' >go.mod; printf 'package main\nimport "fmt"\nfunc main() { fmt.Println("built") }\n' >main.go
			export GOCACHE=$PWD/../cache GOTMPDIR=$PWD/../tmp GOFLAGS=-mod=mod; go build -o ../prog .; [ "$(../prog)" = built ]; [ -z "$(go build -v -o ../prog . 2>&1)" ]; go clean -cache`, true},
		{"make", []string{"make"}, `printf 'all: b\nb: a\n\tcp a b\n' >Makefile; echo 1 >a; make -s; [ "$(make)" = "make: Nothing to be done for 'all'." ]; sleep 0.01; echo 2 >a; make -s; [ "$(cat b)" = 2 ]`, false},
		{"gcc", []string{"gcc"}, `printf '#include <stdio.h>\nint main(void){puts("hi");return 0;}\n' >a.c; gcc -g -o a a.c; [ "$(./a)" = hi ]`, false},
		{"flock", []string{"flock"}, `flock f sh -c '! flock -n f true'; flock -n f true`, false},
		{"scripts run from the mount", nil, `printf '#!/bin/sh\necho "$0"\n' >s; chmod +x s; [ "$(./s)" = ./s ]; cp /bin/true t; ./t; ! bash -c 'echo x >>t & exec ./t' 2>/dev/null || true`, false},
		{"split, cat, sort, xargs", nil, `seq 100000 >f; split -l 1000 f part.; cat part.* | cmp - f; sort -rn -T . -S 100k f | sort -n -T . -S 100k | cmp - f; ls part.* | xargs -n 7 cat | cmp - f`, false},
		{"zip through pipes and mkfifo", nil, `mkfifo p; (seq 1000 | gzip >p) & gzip -d <p >f; wait; [ $(wc -l <f) = 1000 ]`, false},
		{"du, find -newer, ls -la, chmod -R, chown -R", nil, `mkdir -p a/b; echo 1 >a/1; sleep 0.01; echo 2 >a/b/2; [ "$(find a -type f -newer a/1)" = a/b/2 ]; chmod -R go-rwx a; chown -R $(id -u) a
			[ "$(stat -c %a a/b/2)" = 600 ]; ls -laR a | grep -q 2; du -s a`, false},
	}
	for i, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			if r.long && !harness.Long() {
				t.Skip("long")
			}
			harness.NeedCommand(t, r.needs...)
			bash(t, mkdir(t, m.Path(fmt.Sprint(i))), r.script)
		})
	}
}
