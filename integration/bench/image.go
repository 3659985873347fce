package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// image is an ext4 file system in a file, on a loop device.
type image struct {
	file, device, dir string
}

// newImage makes one of the given size, in MiB, and mounts it.
func newImage(path string, mib int64) (*image, error) {
	img := &image{file: path + ".ext4", dir: path}
	f, err := os.Create(img.file)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(mib<<20), f.Close(), os.MkdirAll(img.dir, 0o755)); err != nil {
		return nil, err
	}
	if err := quiet(exec.Command("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", img.file)); err != nil {
		return nil, err
	}
	out, err := exec.Command("losetup", "--find", "--show", img.file).Output()
	if err != nil {
		return nil, fmt.Errorf("losetup: %w", err)
	}
	img.device = strings.TrimSpace(string(out))
	return img, img.mount()
}

func (img *image) mount() error { return quiet(exec.Command("mount", img.device, img.dir)) }

func (img *image) umount() error { return quiet(exec.Command("umount", img.dir)) }

// remove undoes newImage.
func (img *image) remove(err *error) {
	*err = errors.Join(*err, img.umount(), quiet(exec.Command("losetup", "-d", img.device)), os.Remove(img.file))
}

// written returns the bytes written to the device so far.
func (img *image) written() int64 {
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(img.device), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b))
	if len(fields) < 7 {
		return 0
	}
	n, _ := strconv.ParseInt(fields[6], 10, 64) // sectors
	return n * 512
}
