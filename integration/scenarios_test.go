package integration_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cafs/integration/harness"
)

// scenario is a sequence that lost data, hung or surprised somebody in a
// comparable file system (SCENARIO names of the design notes; each heads its
// row). do runs once, in an empty folder of the mount; check, which must
// change nothing, runs after it, again after the kernel's caches were dropped,
// and again after a remount.
type scenario struct {
	name  string
	do    string // bash, set -euo pipefail
	check string
	needs []string // programs
}

// scenarios hold on any Linux file system: with CAFS_PLAIN=1 they run on one.
var scenarios = []scenario{
	{name: "W01 truncating redirection",
		do:    `seq 3 >f; echo x >f`,
		check: `[ "$(cat f)" = x ]; [ "$(stat -c %s f)" = 2 ]`},
	{name: "W02 short after long, at once",
		do:    `for i in $(seq 200); do echo looooong >f; echo s >f; [ "$(<f)" = s ]; done`,
		check: `[ "$(<f)" = s ]`},
	{name: "W06 write far behind the end",
		do: `: >empty; printf abc >three
			for f in empty three; do printf z | dd of=$f bs=1 seek=10485767 conv=notrunc status=none; done`,
		check: `[ "$(tr -d '\0' <empty)" = z ]; [ "$(tr -d '\0' <three)" = abcz ]; [ "$(stat -c %s empty)" = 10485768 ]`},
	{name: "W07 many append at once",
		do: `for p in $(seq 8); do
			(for i in $(seq 300); do echo "writer $p line $i of some length" ; done >>f) & done; wait
			for p in $(seq 8); do for i in $(seq 30); do echo "again $p $i" >>f & done; wait; done`,
		check: `[ $(wc -l <f) = 2640 ]; [ $(grep -cE '^(writer [1-8] line [0-9]+ of some length|again [1-8] [0-9]+)$' f) = 2640 ]; [ $(sort -u f | wc -l) = 2640 ]`},
	{name: "W08 redirect, then append",
		do:    `echo a >f; echo b >>f`,
		check: `[ "$(cat f)" = $'a\nb' ]`},
	{name: "W20 sparse stays sparse",
		do: `truncate -s 32M f; head -c 4096 /dev/urandom | dd of=f bs=4096 seek=4100 conv=notrunc status=none
			sha256sum <f >sum; cp --sparse=auto f g; tar -cSf t.tar f; [ $(stat -c %s t.tar) -lt 2000000 ]`,
		check: `[ $(du -k f | cut -f1) -lt 2000 ]; [ $(du -k g | cut -f1) -lt 2000 ]
			[ "$(sha256sum <f)" = "$(cat sum)" ]; [ "$(sha256sum <g)" = "$(cat sum)" ]; [ $(du -k --apparent-size f | cut -f1) = 32768 ]`},
	{name: "W23 direct I/O",
		do: `dd if=/dev/urandom of=f oflag=direct bs=4k count=64 status=none; sha256sum <f >sum
			truncate -s 1M h; dd if=h of=z iflag=direct bs=4k status=none`,
		check: `[ "$(dd if=f iflag=direct bs=4k status=none | sha256sum)" = "$(cat sum)" ]; cmp -n 1048576 z /dev/zero; [ $(stat -c %s z) = 1048576 ]`},
	{name: "W26 files made read-only at creation",
		do:    `(umask 0333; echo data >a); chmod 0444 a; cp -p a b; chmod 0400 a; cp -p a c; rm -f c`,
		check: `[ "$(cat a b)" = $'data\ndata' ]; [ "$(stat -c %a a b | xargs)" = "400 444" ]; [ ! -e c ]`},
	{name: "W27 save with a backup link",
		do: `echo 0 >t; for i in $(seq 20); do echo $i >.goutputstream-X; ln -f t t~; mv .goutputstream-X t
			[ "$(cat t)" = $i ]; [ "$(cat t~)" = $((i-1)) ]; done`,
		check: `[ "$(cat t t~)" = $'20\n19' ]; [ "$(ls -A | xargs)" = "t t~" ]`},
	{name: "W28 tree of 500",
		do:    `mkdir a; mkdir $(seq -f a/%g 0 19); for i in $(seq 500); do echo $i >a/$((i%20))/$i; done; cp -r a b; diff -r a b`,
		check: `diff -r a b; [ $(find b -type f | wc -l) = 500 ]`},
	{name: "R01 append after a rename",
		do:    `echo 1 >a; mv a b; echo 2 >>b`,
		check: `[ "$(cat b)" = $'1\n2' ]; [ ! -e a ]`},
	{name: "R02 a renamed folder stays renamed",
		do:    `mkdir x; mv x y; echo k >y/k`,
		check: `[ "$(cat y/k)" = k ]; [ ! -e x ]; [ "$(ls)" = y ]`},
	{name: "R03 rename over a folder that is not empty",
		do:    `mkdir a b; echo f >b/f; fails mv -T a b 2>err; grep -q 'not empty' err`,
		check: `[ -d a ]; [ "$(cat b/f)" = f ]`},
	{name: "R05 use right after a rename",
		do: `mkdir d; for i in $(seq 25); do echo $i >n; mv n m; stat m >s; chmod 600 m; [ "$(cat m)" = $i ]; rm m
			echo $i >d/in; mv d e; [ "$(cat e/in)" = $i ]; chmod 600 e/in; rm e/in; mv e d; done`,
		check: `[ "$(ls | xargs)" = "d s" ]`},
	{name: "R06 to and fro",
		do:    `echo content >f; for i in $(seq 50); do mv f g; mv g f; done`,
		check: `[ "$(cat f)" = content ]; [ ! -e g ]`},
	{name: "R08 rsync of an empty file", needs: []string{"rsync"},
		do:    `mkdir src tmp; : >src/empty; echo x >src/x; rsync -a src/ dst/; rsync -a --temp-dir=$PWD/tmp src/ dst2/`,
		check: `diff -r src dst; diff -r src dst2; [ -z "$(ls -A tmp)" ]; [ "$(ls -A dst | xargs)" = "empty x" ]`},
	{name: "R09 full over empty",
		do:    `: >t; echo full >tmp; mv tmp t`,
		check: `[ "$(cat t)" = full ]`},
	{name: "R11 rename, chmod and touch of 5 MiB",
		do:    `head -c 5242883 /dev/urandom >a; sha256sum <a >sum; mv a b; chmod 600 b; touch -d 2001-02-03T04:05:06.123456789 b`,
		check: `[ "$(sha256sum <b)" = "$(cat sum)" ]; [ "$(stat -c '%a %.9Y' b)" = "600 $(date -d 2001-02-03T04:05:06 +%s).123456789" ]`},
	{name: "R15 a folder into itself",
		do:    `mkdir -p d/e; fails mv d d/e/ 2>err; grep -q 'subdirectory of itself' err`,
		check: `[ -d d/e ]; [ "$(find . -mindepth 1 | sort | xargs)" = "./d ./d/e ./err" ]`},
	{name: "R18 move between folders",
		do:    `mkdir d1 d2; echo f >d1/f; mv d1/f d2/f`,
		check: `[ "$(cat d2/f)" = f ]; [ -z "$(ls d1)" ]`},
	{name: "R20 lock files",
		do: `for i in $(seq 60); do [ ! -e x.lock ]; (set -C; echo $i >x.lock); mv x.lock x; [ ! -e x.lock ]; done
			fails bash -Cc 'echo no >x' 2>/dev/null`,
		check: `[ "$(cat x)" = 60 ]`},
	{name: "R22 touch and remove",
		do:    `for i in $(seq 60); do : >f; rm f; done`,
		check: `[ -z "$(ls -A)" ]`},
	{name: "D02 listings of many sizes",
		do:    `for n in 0 1 127 128 1000; do mkdir $n; (cd $n; for i in $(seq $n); do : >$(printf "%0$((1 + i % 250))d" 0)$i; done); done`,
		check: `for n in 0 1 127 128 1000; do [ $(ls -f $n | wc -l) = $((n+2)) ]; [ $(find $n -type f | sort -u | wc -l) = $n ]; [ $(ls -l $n | wc -l) = $((n+1)) ]; done`},
	{name: "D10 names of any bytes",
		do:    `printf 1 >$'a\xff'; printf 2 >$'a\x80'; printf 3 >$'tab\t nl\n "q" \\ %'; mv $'a\x80' $'b\x80'; mkdir $'\xe4'; printf 4 >$'\xe4/\xfc'`,
		check: `[ "$(cat $'a\xff' $'b\x80' $'tab\t nl\n "q" \\ %' $'\xe4/\xfc')" = 1234 ]; [ $(find . -mindepth 1 -print0 | tr -dc '\0' | wc -c) = 5 ]`},
	{name: "D11 long names",
		do:    `n=$(printf '%0255d' 0); echo x >$n; u=$(printf 'é%.0s' $(seq 127)); echo y >$u; fails touch ${n}0 2>/dev/null; fails mkdir ${u}éé 2>/dev/null`,
		check: `[ $(ls | wc -l) = 2 ]; [ "$(cat $(printf '%0255d' 0))" = x ]; [ "$(stat -f -c %l .)" = 255 ]`},
	{name: "D13 inode numbers agree",
		do: `mkdir d; for i in 1 2 3; do echo $i >d/$i; done; ln d/1 d/1b; ln -s 1 d/s`,
		check: `ls -i d | while read ino name; do [ "$ino" != 0 ]; [ "$(stat -c %i d/$name)" = $ino ]; [ "$(find d -inum $ino -name $name)" = d/$name ]; done
			[ "$(stat -c %i d/1)" = "$(stat -c %i d/1b)" ]; [ $(stat -c %h d/1) = 2 ]`},
	{name: "D14 find with and without the leaf optimisation",
		do:    `mkdir -p a/b/c a/d e; touch a/1 a/b/2 a/b/c/3 e/4`,
		check: `diff <(find . | sort) <(find . -noleaf | sort); [ $(find . -type f | wc -l) = 4 ]`},
	{name: "D01 rm -rf of many folders",
		do:    `for i in $(seq 30); do mkdir -p d/$i/x; for j in 1 2 3; do : >d/$i/$j; done; done; chmod -R a-w d; chmod -R u+w d; rm -rf d`,
		check: `[ ! -e d ]`},
	{name: "M03 mtime moves at the write",
		do:    `touch -d @1 f; echo x >>f; [ $(( $(date +%s) - $(stat -c %Y f) )) -le 2 ]`,
		check: `[ $(stat -c %Y f) -gt 1000 ]`},
	{name: "M05 times far away",
		do:    `touch -d 1955-01-01T00:00:00.000000001Z past; touch -d 2200-06-01T12:00:00.999999999Z future; touch -d @-1 eve`,
		check: `[ "$(stat -c %.9Y past future eve | xargs)" = "-473385599.999999999 7271208000.999999999 -1.000000000" ]`},
	{name: "M08 modes as asked",
		do:    `mkdir -m 700 a; (umask 077; mkdir b; : >c); (umask 0; mkdir d; : >e); printf '#!/bin/sh\necho ran\n' >s; chmod 0755 s; ./s`,
		check: `[ "$(stat -c %a a b c d e s | xargs)" = "700 700 600 777 666 755" ]; [ "$(./s)" = ran ]`},
	{name: "M10 special bits",
		do:    `mkdir g t; : >u; chmod 2775 g; chmod 1777 t; chmod 4755 u; mkdir g/sub; : >g/f`,
		check: `[ "$(stat -c %a g t u g/sub | xargs)" = "2775 1777 4755 2755" ]`},
	{name: "M11 symlinks have times and owners",
		do:    `ln -s nowhere l; touch -h -d 2001-01-01T00:00:00Z l; chown -h $(id -u):$(id -g) l; mkdir d; cp -a l d; tar c d | (mkdir o; tar x -C o)`,
		check: `for l in l d/l o/d/l; do [ "$(readlink $l)" = nowhere ]; [ $(stat -c %Y $l) = 978307200 ]; done`},
	{name: "M12 df",
		do:    `head -c 20000000 /dev/urandom >f`,
		check: `[ $(stat -f -c %b .) -gt 0 ]; [ $(stat -f -c %f .) -gt 0 ]; [ $(stat -f -c %c .) -gt 0 ]; df . | grep -q '%'; df -i . | grep -q '%'`},
	{name: "M13 du agrees for dense files",
		do:    `head -c 3000000 /dev/urandom >f; head -c 100 /dev/urandom >g; sync`,
		check: `k=$(du -k f | cut -f1); [ $k -ge 2900 ]; [ $k -le 3100 ]; [ "$(find . -size +1M)" = ./f ]; [ $(du -k g | cut -f1) -le 8 ]`},
	{name: "M14 owner is who made it",
		do:    `: >f; mkdir d`,
		check: `[ "$(stat -c %u f d | sort -u)" = "$(id -u)" ]`},
	{name: "U01 deleted while open",
		do:    `mkdir d; exec 5<>d/x; echo one >&5; rm d/x; rmdir d; echo two >&5; [ "$(cat /proc/self/fd/5)" = $'one\ntwo' ]; [ "$(stat -L -c %h /proc/self/fd/5)" = 0 ]; exec 5>&-`,
		check: `[ -z "$(ls -A)" ]`},
	{name: "U03 replaced while open",
		do:    `echo old >b; echo new >a; exec 5<b; mv a b; [ "$(stat -L -c %h /proc/self/fd/5)" = 0 ]; [ "$(cat <&5)" = old ]; exec 5<&-`,
		check: `[ "$(cat b)" = new ]`},
	{name: "shell: pipes, heredocs, noclobber, descriptors",
		do:    `cat <<<here >f; exec 7>>f; echo seven >&7; echo again >>f; exec 7>&-; tee a b <f >c; sort f | uniq -c | sort -rn >g; cat f f >h; sed -i s/seven/eight/ f`,
		check: `[ "$(cat f)" = $'here\neight\nagain' ]; cmp a b; cmp a c; [ $(wc -l <h) = 6 ]`},
	{name: "tar keeps hard links, times, modes, holes, xattrs and ACLs", needs: []string{"setfattr", "getfattr", "setfacl", "getfacl"},
		do: `mkdir -p s/d; echo x >s/a; ln s/a s/d/b; ln -s a s/l; mkfifo s/p; truncate -s 5M s/h; setfattr -n user.k -v v s/a; chmod 4711 s/d; touch -d 2010-10-10T10:10:10.101010101Z s/a
			setfacl -m u:61001:rx s/l; setfacl -d -m g:61002:rwx s/d; tar --xattrs --acls -cSf t.tar s; mkdir o; tar --xattrs --acls -xpSf t.tar -C o`,
		check: `for r in s o/s; do [ $(stat -c %h $r/d/b) = 2 ]; [ $(stat -c %i $r/a) = $(stat -c %i $r/d/b) ]; [ $(stat -c %.9Y $r/a) = 1286705410.101010101 ]
			[ $(stat -c %a $r/d) = 4711 ]; [ -p $r/p ]; getfacl -n $r/a | grep -q '^user:61001:r-x'; getfacl -n $r/d | grep -q '^default:group:61002:rwx'; [ $(readlink $r/l) = a ]; [ $(du -k $r/h | cut -f1) -lt 100 ]; [ "$(getfattr --only-values -n user.k $r/d/b)" = v ]; done`},
	{name: "cpio keeps hard links", needs: []string{"cpio"},
		do:    `mkdir s; echo x >s/a; ln s/a s/b; (cd s; find . | cpio -o -H newc --quiet) >c.cpio; mkdir o; (cd o; cpio -id --quiet <../c.cpio)`,
		check: `diff -r s o; [ $(stat -c %h o/a) = 2 ]`},
	{name: "ACLs", needs: []string{"setfacl", "getfacl"},
		do: `mkdir d; : >f; chmod 640 f; setfacl -m u:61001:rwx f; setfacl -d -m u:61002:rx,g::rx d; mkdir d/sub; (umask 0; : >d/new); (umask 077; : >d/masked)`,
		check: `[ $(stat -c %a d/masked) = 644 ]; getfacl -n f | grep -q '^user:61001:rwx'; [ $(stat -c %a f) = 670 ]; getfacl -n d/sub | grep -q '^default:user:61002:r-x'
			getfacl -n d/new | grep -q '^user:61002:r-x'; [ $(stat -c %a d/new) = 644 ]`},
	{name: "fallocate, holes and copies",
		do:    `head -c 4194304 /dev/urandom >f; cp f g; fallocate -p -o 1048576 -l 1048576 g; fallocate -l 8M h; cp --reflink=auto f r; cp --sparse=always g s`,
		check: `cmp -n 1048576 f g; cmp -i 2097152 f g; cmp -n 1048576 -i 1048576:0 g /dev/zero; [ $(stat -c %s h) = 8388608 ]; cmp f r; cmp g s; [ $(du -k g | cut -f1) -lt 4000 ]`},
}

// bash runs a script in a folder.
func bash(t testing.TB, dir, script string, env ...string) {
	t.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", "fails() { ! \"$@\"; }\n"+script)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "LC_ALL=C", "TZ=UTC"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v in\n%s\n%s", err, script, bytes.TrimSpace(out))
	}
}

// TestScenarios runs all of them in one mount, which is remounted once.
func TestScenarios(t *testing.T) {
	m := harness.New(t, harness.Options{})
	run := func(t *testing.T, prefix string, f func(*testing.T, scenario, string)) {
		for _, s := range scenarios {
			id, _, _ := strings.Cut(s.name, " ")
			t.Run(prefix+s.name, func(t *testing.T) {
				harness.NeedCommand(t, s.needs...)
				f(t, s, filepath.Join(m.Dir, strings.TrimSuffix(id, ":")+"-"+slug(s.name)))
			})
		}
	}
	run(t, "", func(t *testing.T, s scenario, dir string) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		bash(t, dir, s.do)
		bash(t, dir, s.check)
	})
	check := func(t *testing.T, s scenario, dir string) { bash(t, dir, s.check) }
	if harness.DropCaches() {
		run(t, "caches dropped/", check)
	}
	m.Remount()
	run(t, "remounted/", check)
}

// slug makes a folder's name of a sentence.
func slug(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' {
			return r
		}
		return '-'
	}, s)
}
