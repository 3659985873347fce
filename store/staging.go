package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync/atomic"

	"cafs/store/disk"
)

// stageFolders is over how many folders temporary files are spread: creations
// in one folder wait for each other.
const stageFolders = 4

// staging is where blocks are written aside. That its folder exists is the mark
// of an open store: finding it at Open means an unclean end.
type staging struct {
	stages [stageFolders]disk.FS
	next   atomic.Uint64
}

// temp is a temporary file's place.
type temp struct {
	stage disk.FS
	name  string
}

// open sweeps what an interrupted run left, ours and that of flatfs, and makes
// the staging folder. When there was one it flushes the file system, so that
// every name seen from now on is durable.
func (s *staging) open(root disk.FS) (clean bool, err error) {
	clean = true
	if _, err := root.Stat(stagingName); err == nil {
		clean = false
		if err := root.SyncFS(); err != nil {
			return false, err
		}
	} else if !notExist(err) {
		return false, err
	}
	for _, name := range []string{stagingName, flatfsTemp} {
		if err := removeAll(root, name); err != nil {
			return false, err
		}
	}
	if err := root.Mkdir(stagingName, dirPerm); err != nil {
		return false, err
	}
	for i := range s.stages {
		name := stagingName + "/" + strconv.Itoa(i)
		if err := root.Mkdir(name, dirPerm); err != nil {
			return false, err
		}
		if s.stages[i], err = root.Sub(name); err != nil {
			return false, err
		}
	}
	return clean, nil
}

// create opens a new temporary file; flag adds to O_RDWR.
func (s *staging) create(flag int) (temp, disk.File, error) {
	n := s.next.Add(1)
	t := temp{s.stages[n%stageFolders], strconv.FormatUint(n, 36)}
	f, err := t.stage.OpenFile(t.name, os.O_RDWR|os.O_CREATE|os.O_EXCL|flag, filePerm)
	return t, f, err
}

func (t temp) remove() error { return t.stage.Remove(t.name) }

func (s *staging) close() {
	for i, f := range s.stages {
		if f != nil {
			f.Close()
			s.stages[i] = nil
		}
	}
}

// remove marks the store as cleanly closed.
func (s *staging) remove(root disk.FS) error {
	s.close()
	if err := removeAll(root, stagingName); err != nil {
		return fmt.Errorf("store: close: %w", err)
	}
	return nil
}

// removeAll removes name and everything below it; a missing one is fine.
func removeAll(root disk.FS, name string) error {
	err := root.Remove(name)
	if err == nil || notExist(err) {
		return nil
	}
	names, lerr := root.ReadDir(name)
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	for _, n := range names {
		if err := removeAll(root, name+"/"+n.Name); err != nil {
			return err
		}
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
