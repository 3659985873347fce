package integration_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"cafs/integration/harness"
)

// app is a program that must work on a mount as it does elsewhere. The script
// runs in an empty folder of the mount, with $DISK another one on the disk
// below, and fails when something is not as it must be.
type app struct {
	name   string
	needs  string // programs
	script string
}

// apps take minutes each and need what is not on every machine, so they run in
// the long form only; doc/posix.md has the last results.
var apps = []app{
	{"vim", "vim", `
		for how in yes no auto; do
			echo start >f; chmod 640 f; ln f hard
			for i in $(seq 15); do vim -u NONE -n -es +"set backupcopy=$how" +"normal Gosave $i" +wq f; done
			[ $(wc -l <f) = 16 ]; [ "$(tail -1 f)" = "save 15" ]; [ $(stat -c %a f) = 640 ]
			[ $how = no ] || [ f -ef hard ]
			[ "$(ls)" = $'f\nhard' ]; rm f hard
		done`},
	{"nano", "nano python3 stty", `
		echo start >f
		cat >$DISK/drive.py <<-'END'
			import os, pty
			pid, tty = pty.fork()
			if pid == 0: os.execlp("sh", "sh", "-c", "stty rows 24 cols 80; TERM=xterm exec nano -I f")
			seen = b""
			while b"start" not in seen: seen += os.read(tty, 1000) # what is typed before is thrown away
			os.write(tty, b"x\x0f\r\x18")
			try:
			    while os.read(tty, 1000): pass
			except OSError: pass # the end
			assert os.waitpid(pid, 0)[1] == 0
		END
		for i in 1 2 3 4 5; do timeout 60 python3 $DISK/drive.py; done
		[ "$(cat f)" = xxxxxstart ]`},
	{"python venv and mmap", "python3", `
		python3 -m venv v; v/bin/python -m compileall -q v
		v/bin/python - <<-'END'
			import mmap, os, sqlite3, tempfile, shelve
			with open("m", "wb+") as f:
			    f.truncate(10 << 20)
			    with mmap.mmap(f.fileno(), 0) as m:
			        for i in range(0, len(m), 4096): m[i:i+8] = i.to_bytes(8, "big")
			        m.flush()
			data = open("m", "rb").read()
			assert all(int.from_bytes(data[i:i+8], "big") == i for i in range(0, len(data), 4096))
			with mmap.mmap(os.open("m", os.O_RDWR), 0, access=mmap.ACCESS_COPY) as m: m[0:3] = b"new"
			assert open("m", "rb").read(3) == data[:3]
			with shelve.open("s") as s: s.update({str(i): i for i in range(3000)})
			with shelve.open("s") as s: assert s["2999"] == 2999
			tempfile.tempdir = "."; tempfile.TemporaryFile().write(b"x")
		END
		rm -rf v`},
	{"go build", "go", `
		mkdir src tmp; cd src; printf 'module m\n\ngo 1.22\n' >go.mod
		printf 'package main\n\nimport (\n"fmt"\n"net/http"\n)\n\nfunc main() { fmt.Println(http.StatusText(404)) }\n' >main.go
		export GOPATH=$PWD/../path GOCACHE=$PWD/../cache GOTMPDIR=$PWD/../tmp GOFLAGS=-mod=mod
		go build -o prog; [ "$(./prog)" = "Not Found" ]; go vet
		touch -d 2000-01-01 prog; go build -o prog; printf '\n// more\n' >>main.go; go build -o prog; ./prog; go clean -cache`},
	{"npm", "npm node", `
		export HOME=$PWD npm_config_cache=$PWD/.npm npm_config_audit=false npm_config_fund=false
		mkdir packages app
		for i in $(seq 40); do
			mkdir -p packages/p$i/lib/a/b
			printf '{"name":"p%s","version":"1.0.0","bin":{"p%s":"run.js"}}' $i $i >packages/p$i/package.json
			printf '#!/usr/bin/env node\nconsole.log(%s)\n' $i >packages/p$i/run.js
			for j in $(seq 40); do echo "module.exports=$j" >packages/p$i/lib/a/b/$j.js; done
			(cd packages/p$i; npm pack --silent >/dev/null)
		done
		cd app; printf '{"name":"app","version":"1.0.0"}' >package.json
		npm install --offline --silent ../packages/*/*.tgz
		[ "$(node_modules/.bin/p40)" = 40 ]; [ $(find node_modules -name '*.js' | wc -l) = 1640 ]
		npm install --offline --silent; npm ci --offline --silent; [ "$(node_modules/.bin/p7)" = 7 ]; rm -rf node_modules`},
	{"make and gcc", "make gcc", `
		for i in $(seq 60); do printf '#include <stdio.h>\nint f%s(void){return %s;}\n' $i $i >f$i.c; echo "int f$i(void);" >>all.h; done
		{ echo '#include "all.h"'; echo 'int main(){return !(0'; for i in $(seq 60); do echo "+f$i()"; done; echo '==1830);}'; } >main.c
		printf 'prog: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tgcc -o $@ $^\n%%.o: %%.c all.h\n\tgcc -g -c $<\n' >Makefile
		make -s -j4; ./prog; make | grep -q 'up to date'; touch all.h; [ $(make -n | grep -c -- -c) = 61 ]; make -s -j4; ./prog
		ar rcs lib.a f*.o; gcc -o p2 main.c lib.a; ./p2; strip p2; ./p2`},
	{"PostgreSQL", "psql setpriv", `
		PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1) # where Debian has the rest
		chmod 755 .; mkdir db sock; chown postgres db sock
		pg() { setpriv --reuid postgres --regid postgres --clear-groups env PGHOST=$PWD/sock PGUSER=postgres PGDATABASE=postgres "$@"; }
		up() { pg pg_ctl -s -w -t 120 -D db -l sock/log -o "-k $PWD/sock -h '' -p 5499" start; }
		export PGPORT=5499; trap 'pg pg_ctl -s -m immediate -D db stop 2>/dev/null || true' EXIT
		pg initdb -D db -k >/dev/null; up
		pg pgbench -i -q -s 4 2>/dev/null
		for round in 1 2 3; do
			pg pgbench -n -c 4 -T 8 >/dev/null 2>&1 & bench=$!
			sleep 5; kill -9 $(head -1 db/postmaster.pid); wait $bench || true
			while pgrep -u postgres -f "sock -h" >/dev/null || pgrep -u postgres postgres >/dev/null; do sleep 0.2; done
			up
			sums=$(pg psql -Atc 'select (select sum(abalance) from pgbench_accounts), (select sum(bbalance) from pgbench_branches), (select sum(tbalance) from pgbench_tellers), (select coalesce(sum(delta), 0) from pgbench_history)')
			[ $(tr '|' '\n' <<<"$sums" | sort -u | wc -l) = 1 ] || { echo "round $round: $sums"; false; }
		done
		pg psql -qAt -c 'vacuum full' -c checkpoint; pg pg_ctl -s -w -D db stop; pg_checksums -c -D db >/dev/null`},
	{"fio", "fio", `
		for engine in psync mmap libaio io_uring; do for direct in 0 1; do
			[ $engine$direct != mmap1 ] || continue
			fio --name=v --ioengine=$engine --direct=$direct --rw=randwrite --bsrange=4k-128k --blockalign=4k --size=48m --numjobs=2 --iodepth=8 --verify=crc32c \
				--do_verify=1 --verify_fatal=1 --verify_backlog=200 --group_reporting --minimal >$DISK/out || { cat $DISK/out; false; }
			rm -f v.*
		done; done`},
	{"dbench", "dbench", `dbench -D . -t 15 4 >$DISK/out; grep -q Throughput $DISK/out; [ -z "$(ls)" ] || ls clients`},
	{"stress-ng", "stress-ng", `
		# binderfs mounts one of its own, which needs a module.
		stress-ng --temp-path . --class filesystem --exclude binderfs --sequential 1 --timeout 3s --verify --oomable --metrics-brief >$DISK/out 2>&1 || { grep -E 'fail|error|aborted' $DISK/out; false; }`},
	{"overlayfs", "mount umount", `
		[ $(id -u) = 0 ]; mkdir lower; seq 1000 >lower/f; mkdir -p lower/d/e; ln -s f lower/s; setfattr -n user.x -v y lower/f
		mkdir $DISK/upper $DISK/work $DISK/merged
		mount -t overlay overlay -o lowerdir=$PWD/lower,upperdir=$DISK/upper,workdir=$DISK/work $DISK/merged
		trap 'umount $DISK/merged' EXIT
		(cd $DISK/merged; cmp f s; echo more >>f; rm s; mv f g; rm -r d/e; touch d/new; getfattr -n user.x g >/dev/null)
		[ $(wc -l <$DISK/merged/g) = 1001 ]; [ $(wc -l <lower/f) = 1000 ]; [ -L lower/s ]; [ -d lower/d/e ]; ls -la $DISK/merged >/dev/null`},
	{"overlayfs above", "mount umount", `
		[ $(id -u) = 0 ]; mkdir upper work $DISK/lower $DISK/merged; seq 1000 >$DISK/lower/f; mkdir -p $DISK/lower/d/e; seq 9 >$DISK/lower/d/n; ln -s f $DISK/lower/s
		mount -t overlay overlay -o lowerdir=$DISK/lower,upperdir=$PWD/upper,workdir=$PWD/work $DISK/merged
		(cd $DISK/merged; echo more >>f; rm s; mv f g; rm -r d/e; mv d/n d/m; touch d/new; mkdir h; mv h i; cp -r d k; rm -r k)
		[ "$(cd $DISK/merged; find . | sort | xargs)" = ". ./d ./d/m ./d/new ./g ./i" ]; umount $DISK/merged
		mount -t overlay overlay -o lowerdir=$DISK/lower,upperdir=$PWD/upper,workdir=$PWD/work $DISK/merged
		trap 'umount $DISK/merged' EXIT
		[ "$(cd $DISK/merged; find . | sort | xargs)" = ". ./d ./d/m ./d/new ./g ./i" ]; [ $(wc -l <$DISK/merged/g) = 1001 ]; [ $(wc -l <$DISK/lower/f) = 1000 ]; [ "$(stat -c '%F %t %T' upper/f)" = "character special file 0 0" ]`},
	{"cp --reflink", "cp cmp", `
		head -c 20000000 /dev/urandom >f; cp --reflink=auto f g; cmp f g; fails cp --reflink=always f h 2>$DISK/err
		truncate -s 100M s; printf x | dd of=s bs=1 seek=50000000 conv=notrunc status=none
		cp --sparse=auto s t; cmp s t; [ $(stat -c %b t) -lt 100 ]`},
	{"rclone", "rclone", `
		mkdir src; for i in $(seq 300); do head -c $((i * 1000)) /dev/urandom >src/$i; done; ln -s 1 src/link
		rclone sync --links src $DISK/copy; rclone check --links src $DISK/copy 2>/dev/null
		rclone sync --links -v src $DISK/copy 2>&1 | grep -q 'There was nothing to transfer'`},
	{"restic", "restic", `
		export RESTIC_PASSWORD=x RESTIC_REPOSITORY=$DISK/repo XDG_CACHE_HOME=$DISK/cache
		mkdir src; for i in $(seq 300); do head -c $((i * 1000)) /dev/urandom >src/$i; done
		restic init -q; restic backup -q src; restic backup src | grep -E 'Files: +0 new, +0 changed, +300 unmodified'
		restic restore -q latest --target back --include src; diff -r src "$(find back -name src)"; restic check -q`},
}

// TestApps runs the programs on a mount others may enter.
func TestApps(t *testing.T) {
	if !harness.Long() {
		t.Skip("only in the long form")
	}
	harness.NeedRoot(t)
	m := harness.New(t, harness.Options{Args: []string{"--allow-other"}, Limit: harness.MountLimit()})
	for _, a := range apps {
		t.Run(a.name, func(t *testing.T) {
			for _, p := range strings.Fields(a.needs) {
				if _, err := exec.LookPath(p); err != nil {
					t.Skipf("no %s here", p)
				}
			}
			dir, disk := m.Path(strings.ReplaceAll(a.name, " ", "-")), harness.Scratch(t)
			bash(t, mkdir(t, dir), a.script, "DISK="+disk)
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
	}
	m.Umount()
	m.MustCafs("verify", "-q", "--repo", m.Repo)
	m.Mount()
}
