package daemon

import (
	"strings"
	"testing"
)

const mountinfo = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:45 / /home/u/c rw,nosuid,nodev shared:2 master:3 - fuse.cafs /home/u/.cafs rw,user_id=1000
31 22 0:46 / /mnt/a\040b\011c rw - fuse.cafs /repo\134x rw
32 22 0:47 / /mnt/two rw - tmpfs tmpfs rw
33 32 0:48 / /mnt/two rw - fuse.cafs /srv/two rw
34 33 0:49 / /mnt/two/below rw - tmpfs none rw
35 22 0:50 / /mnt/twofold rw - tmpfs none rw
garbage
36 22 0:51 / /short - fuse.cafs
`

func TestMounts(t *testing.T) {
	all, err := parseMounts(strings.NewReader(mountinfo))
	if err != nil || len(all) != 7 {
		t.Fatalf("%d mounts, %v", len(all), err)
	}
	for _, c := range []struct {
		path, dir, source string
		ours              bool
	}{
		{"/home/u/c", "/home/u/c", "/home/u/.cafs", true},
		{"/home/u/c/x/y", "/home/u/c", "/home/u/.cafs", true},
		{"/home/u", "/", "/dev/sda1", false},
		{"/mnt/a b\tc", "/mnt/a b\tc", `/repo\x`, true},
		{"/mnt/two", "/mnt/two", "/srv/two", true}, // the one on top
		{"/mnt/two/below/f", "/mnt/two/below", "none", false},
		{"/", "/", "/dev/sda1", false},
	} {
		m, ok := MountOf(all, c.path)
		if ok != c.ours || m.Dir != c.dir || m.Source != c.source {
			t.Errorf("MountOf(%q) = %+v, %v", c.path, m, ok)
		}
	}
	if below := mountsBelow(all, "/mnt/two"); len(below) != 1 || below[0].Dir != "/mnt/two/below" {
		t.Errorf("below /mnt/two: %+v", below)
	}
	if below := mountsBelow(all, "/"); len(below) != 6 {
		t.Errorf("%d mounts below /, want 6", len(below))
	}
}

func TestMapped(t *testing.T) {
	const maps = "7f0000000000-7f0000001000 r--p 00000000 00:2d 17   /home/u/c/lib.so\n" +
		"7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n"
	for dev, want := range map[string]bool{"0:45": true, "0:46": false, "8:45": false, "0:2": false, "": false, "0:x": false} {
		if got := mapped(strings.NewReader(maps), dev); got != want {
			t.Errorf("device %q mapped: %v", dev, got)
		}
	}
	for info, want := range map[string]int{"pos:\t0\nflags:\t02\nmnt_id:\t33\nino:\t5\n": 33, "pos:\t0\n": -1, "mnt_id:\tx\n": -1, "": -1} {
		if got := mountID([]byte(info)); got != want {
			t.Errorf("mount id of %q: %d", info, got)
		}
	}
}

func TestBusyMessage(t *testing.T) {
	e := &BusyError{Dir: "/m", Below: []string{"/m/x"}}
	for i := range maxNamed + 2 {
		e.Users = append(e.Users, User{i, "sh", "open file f"})
	}
	for _, want := range []string{"pid 0 (sh: open file f)", "and 2 more", "a mount at /m/x"} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("%q lacks %q", e, want)
		}
	}
	if got := (&BusyError{Dir: "/m"}).Error(); !strings.Contains(got, "cannot be seen") {
		t.Error(got)
	}
}
