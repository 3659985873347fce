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

// contestant is a file system under test, on an image.
type contestant struct {
	name, bin string
	img       *image
	mnt       string
	pid       int
	cmd       *exec.Cmd // L and N
	burnt     float64   // CPU seconds of daemons that have ended
	high      int64     // their peak memory
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
	if k.name == "native" {
		return k.img.dir
	}
	return k.mnt
}

func (k *contestant) start() error {
	switch k.name {
	case "native":
		return nil
	case "cafs":
		repo := filepath.Join(k.img.dir, "repo")
		if err := quiet(exec.Command(k.bin, "mount", "-b", "--repo", repo, k.mnt)); err != nil {
			return err
		}
		out, err := exec.Command(k.bin, "status", "--json", "--repo", repo).Output()
		var s struct{ Pid int }
		if err := errors.Join(err, json.Unmarshal(out, &s)); err != nil {
			return fmt.Errorf("status: %w", err)
		}
		k.pid = s.Pid
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from := k.name
	if k.name == "L" {
		from = filepath.Join(k.img.dir, "backing")
		if err := os.MkdirAll(from, 0o755); err != nil {
			return err
		}
	}
	k.cmd = exec.Command(self, "serve", from, k.mnt)
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
	k.burnt, k.high = k.cpu(), k.peak()
	k.pid = 0
	if k.name == "cafs" {
		return quiet(exec.Command(k.bin, "umount", k.mnt))
	}
	return errors.Join(quiet(exec.Command("umount", k.mnt)), k.cmd.Wait())
}

func (k *contestant) stop(err *error) { *err = errors.Join(*err, k.end()) }

// cold makes nothing cached anywhere: not by the kernel, not by a daemon.
func (k *contestant) cold() error {
	if k.name == "N" {
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
	case "N":
		return nil
	case "cafs":
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

// peak returns the most memory a daemon had resident, in bytes.
func (k *contestant) peak() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.pid))
	if k.pid == 0 || err != nil {
		return k.high
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	return max(k.high, kib<<10)
}
