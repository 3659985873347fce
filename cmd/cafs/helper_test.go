package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestHelperOptions(t *testing.T) {
	for in, want := range map[string]string{
		"rw":                                  "[] 0 1",
		"":                                    "[] 0 0",
		"rw,noauto,user,nofail,x-systemd.a=b": "[] 0 1",
		"ro,noexec,exec":                      "[] 1 8",
		"ro,rw,sync":                          "[] 10 1",
		"allow_other,suid,allow_dev":          "[--allow-other --allow-suid --allow-dev] 0 0",
		"suid,dev,nosuid":                     "[--allow-dev] 0 0",
		"nosuid,nodev,allow_suid,allow_dev":   "[] 0 0",
		"noexec,nosuid,allow_suid,user,suid":  "[--allow-suid] 8 0",
		`profile=unixfs-v1-2025,dirty_limit=1GiB,commit_interval=1s`: "[--profile unixfs-v1-2025 --dirty-limit 1GiB --commit-interval 1s] 0 0",
		`comment=a\,b,relatime`:  "[] 0 0",
		`comment="a,b",relatime`: "[] 0 0",
		"rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576,remount,ro": "[--allow-other] 1 0",
		"nosuch": `mount option "nosuch" is unknown; see doc/fstab.md`,
		"ro=1":   `mount option "ro=1" is unknown; see doc/fstab.md`,
	} {
		m, err := parseOptions(splitOptions(in), false)
		got := fmt.Sprintf("%v %x %x", m.flags, m.set, m.not)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	if _, err := parseOptions([]string{"nosuch"}, true); err != nil {
		t.Errorf("sloppy: %v", err)
	}
}

func TestHelperLine(t *testing.T) {
	for in, want := range map[string]string{
		"/r /m -o rw,suid":             "[/r /m] map[] [rw suid]",
		"/r /m -nv -o rw -t fuse.cafs": "[/r /m] map[110:true 118:true] [rw]",
		"-sorw /r -N 7 /m":             "[/r /m] map[115:true] [rw]",
		"/r /m -o":                     "-o needs a value",
	} {
		l, err := parseHelper(strings.Fields(in))
		got := fmt.Sprintf("%v %v %v", l.args, l.flags, l.options)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
