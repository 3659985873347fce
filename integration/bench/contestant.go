package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The contestants.
const (
	product     = "cafs"
	loopback    = "L"
	null        = "N"
	passthrough = "P"
	native      = "native"
)

// contestant is a file system under test, on an image.
type contestant struct {
	name, bin string
	img       *image
	mnt       string
	pid       int
	cmd       *exec.Cmd // L, N and P
	burnt     float64   // CPU seconds of daemons that have ended
	sent      int64     // requests that they were sent
}

func newContestant(name, dir, bin string, img *image) (*contestant, error) {
	k := &contestant{name: name, bin: bin, img: img, mnt: filepath.Join(dir, "mnt")}
	if err := os.MkdirAll(k.mnt, 0o755); err != nil {
		return nil, err
	}
	return k, k.start()
}

// root is the folder that is tested.
func (k *contestant) root() string {
	if k.name == native {
		return k.img.dir
	}
	return k.mnt
}

func (k *contestant) start() error {
	switch k.name {
	case native:
		return nil
	case product:
		repo := filepath.Join(k.img.dir, "repo")
		if err := quiet(exec.Command(k.bin, "mount", "-b", "--repo", repo, k.mnt)); err != nil {
			return err
		}
		s, err := k.status()
		k.pid = s.Pid
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from := filepath.Join(k.img.dir, "backing")
	if err := os.MkdirAll(from, 0o755); err != nil {
		return err
	}
	k.cmd = exec.Command(self, "serve", k.name, from, k.mnt)
	k.cmd.Stderr = os.Stderr
	if err := k.cmd.Start(); err != nil {
		return err
	}
	k.pid = k.cmd.Process.Pid
	var before, now unix.Stat_t
	if err := unix.Stat(filepath.Dir(k.mnt), &before); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if unix.Stat(k.mnt, &now) == nil && now.Dev != before.Dev {
			return nil
		}
	}
	return errors.New("no mount in 10 s")
}

func (k *contestant) end() error {
	if k.pid == 0 {
		return nil
	}
	k.burnt, k.sent = k.cpu(), k.requests()
	k.pid = 0
	if k.name == product {
		return quiet(exec.Command(k.bin, "umount", k.mnt))
	}
	return errors.Join(quiet(exec.Command("umount", k.mnt)), k.cmd.Wait())
}

func (k *contestant) stop(err *error) { *err = errors.Join(*err, k.end()) }

// cold makes nothing cached anywhere: not by the kernel, not by a daemon.
func (k *contestant) cold() error {
	if k.name == null {
		return dropCaches()
	}
	return errors.Join(k.end(), k.img.umount(), dropCaches(), k.img.mount(), k.start())
}

func dropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// durable returns when all that was written is on the device.
func (k *contestant) durable() error {
	switch k.name {
	case null:
		return nil
	case product:
		return quiet(exec.Command(k.bin, "sync", k.mnt))
	}
	f, err := os.Open(k.img.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// cpu returns the seconds the daemons have computed so far.
func (k *contestant) cpu() float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", k.pid))
	if k.pid == 0 || err != nil {
		return k.burnt
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	const ticks = 100 // USER_HZ
	return k.burnt + (user+system)/ticks
}

// peak returns the most memory the daemon had resident since resetPeak, in bytes.
func (k *contestant) peak() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.pid))
	if k.pid == 0 || err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	return kib << 10
}

func (k *contestant) resetPeak() error {
	if k.pid == 0 {
		return nil
	}
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", k.pid), []byte("5"), 0)
}

type status struct {
	Pid      int
	Messages map[string]int64
}

func (k *contestant) status() (s status, err error) {
	out, err := exec.Command(k.bin, "status", "--json", "--repo", filepath.Join(k.img.dir, "repo")).Output()
	if err := errors.Join(err, json.Unmarshal(out, &s)); err != nil {
		return s, fmt.Errorf("status: %w", err)
	}
	return s, nil
}

// requests returns how many the kernel has sent so far. FORGETs, which nobody
// waits for and which the others get in batches, are left out for cafs.
func (k *contestant) requests() int64 {
	if k.pid == 0 {
		return k.sent
	}
	if k.name != product {
		var st unix.Statfs_t
		if err := unix.Statfs(k.mnt, &st); err != nil {
			return k.sent
		}
		return k.sent + int64(st.Files)
	}
	s, err := k.status()
	if err != nil {
		return k.sent
	}
	n := k.sent
	for kind, count := range s.Messages {
		if kind != "FORGET" {
			n += count
		}
	}
	return n
}
