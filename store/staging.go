package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
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
	dir    disk.FS
	stages [stageFolders]disk.FS
	next   atomic.Uint64

	// Files without a name cost less than those with a temporary one, and stay
	// open until they have their final one.
	unnamed    atomic.Int64 // open ones
	maxUnnamed int64        // 0 where the file system has none
}

// temp is a file written aside: under a temporary name, or open and without one.
type temp struct {
	stage disk.FS
	name  string
	file  disk.File // nil when it has a name
}

// open makes the staging folder and sweeps what an interrupted run left, ours
// and that of flatfs, but for its logs. After such a run it flushes the file
// system, so that every name seen from now on is durable.
func (s *staging) open(root disk.FS) (clean bool, logs []string, err error) {
	if err := removeAll(root, flatfsTemp); err != nil {
		return false, nil, err
	}
	err = root.Mkdir(stagingName, dirPerm)
	clean = err == nil
	if !clean {
		if !errors.Is(err, fs.ErrExist) {
			return false, nil, err
		}
		if err := root.SyncFS(); err != nil {
			return false, nil, err
		}
		if logs, err = s.sweep(root); err != nil {
			return false, nil, err
		}
	}
	if s.dir, err = root.Sub(stagingName); err != nil {
		return false, nil, err
	}
	for i := range s.stages {
		name := strconv.Itoa(i)
		if err := s.dir.Mkdir(name, dirPerm); err != nil {
			return false, nil, err
		}
		if s.stages[i], err = s.dir.Sub(name); err != nil {
			return false, nil, err
		}
	}
	if s.probe() {
		s.maxUnnamed = int64(disk.MaxHandles() / unnamedShare)
	}
	return clean, logs, nil
}

// sweep empties the staging folder but for logs, which it lists in their order.
func (s *staging) sweep(root disk.FS) (logs []string, err error) {
	names, err := root.ReadDir(stagingName)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if _, ok := logNumber(n.Name); ok && !n.Dir {
			logs = append(logs, n.Name)
		} else if err := removeAll(root, stagingName+"/"+n.Name); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(logs, func(a, b string) int {
		m, _ := logNumber(a)
		n, _ := logNumber(b)
		return m - n
	})
	return logs, nil
}

// unnamedShare of the files that the process may have open are unnamed ones.
const unnamedShare = 4

// probe tells whether files can be made without a name and get one later.
func (s *staging) probe() bool {
	u, ok := s.stages[0].(disk.Unnamed)
	if !ok {
		return false
	}
	f, err := u.CreateUnnamed(filePerm)
	if err != nil {
		return false
	}
	t := temp{stage: s.stages[0], name: "probe"}
	err = u.Name(f, t.name)
	return errors.Join(err, f.Close(), t.remove()) == nil
}

// create opens a new temporary file; flag adds to O_RDWR.
func (s *staging) create(flag int) (temp, disk.File, error) {
	t := s.place()
	f, err := t.stage.OpenFile(t.name, os.O_RDWR|os.O_CREATE|os.O_EXCL|flag, filePerm)
	return t, f, err
}

func (s *staging) place() temp {
	n := s.next.Add(1)
	return temp{stage: s.stages[n%stageFolders], name: strconv.FormatUint(n, 36)}
}

// createUnnamed is create for a file without a name where that can be. The
// handle stays open as long as the file has none; it is the staging's to close.
func (s *staging) createUnnamed() (temp, disk.File, error) {
	if s.unnamed.Add(1) > s.maxUnnamed {
		s.unnamed.Add(-1)
		return s.create(0)
	}
	t := s.place()
	f, err := t.stage.(disk.Unnamed).CreateUnnamed(filePerm)
	if err != nil {
		s.unnamed.Add(-1)
	}
	t.file = f
	return t, f, err
}

// remove throws the file away.
func (s *staging) remove(t temp) error {
	if t.file == nil {
		return t.remove()
	}
	return s.closeUnnamed(t)
}

func (t temp) remove() error { return t.stage.Remove(t.name) }

func (s *staging) closeUnnamed(t temp) error {
	s.unnamed.Add(-1)
	return t.file.Close()
}

// rename gives the file its final name, over a damaged file of that name.
func (s *staging) rename(t temp, dir disk.FS, name string) error {
	if t.file == nil {
		return t.stage.Rename(t.name, dir, name)
	}
	err := dir.(disk.Unnamed).Name(t.file, name)
	if errors.Is(err, fs.ErrExist) {
		if err = t.stage.(disk.Unnamed).Name(t.file, t.name); err == nil {
			err = t.stage.Rename(t.name, dir, name)
		}
	}
	if err != nil {
		return err
	}
	return s.closeUnnamed(t)
}

func (s *staging) close() {
	for i, f := range s.stages {
		if f != nil {
			f.Close()
			s.stages[i] = nil
		}
	}
	if s.dir != nil {
		s.dir.Close()
		s.dir = nil
	}
}

// end marks the store as cleanly closed.
func (s *staging) end(root disk.FS) error {
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
