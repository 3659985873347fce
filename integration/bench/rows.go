package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// env is what a row works on.
type env struct {
	config
	root string
}

func (e *env) path(name string) string { return filepath.Join(e.root, name) }

func (e *env) small(i int) string { return filepath.Join(e.root, "small", fmt.Sprint(i)) }

// row is one line of the table.
type row struct {
	name   string
	unit   string
	bar    float64 // how many times faster than L cafs must be; 0: for information
	meta   bool    // and it may take at most 1.3 times the time of N
	cold   bool    // starts with nothing cached
	writes bool
	seals  bool   // how long it takes to have a CID is measured too
	needs  string // the row that makes what this one works on
	// prepare makes what only this row works on.
	prepare func(*env) error
	run     func(*env) (amount float64, err error)
}

// The units: a rate of the amount, or the time of one.
const (
	rateMiB = "MiB/s"
	rateOps = "op/s"
	timeMs  = "ms"
	timeSec = "s"
)

var rows = []row{
	{name: "write + fsync", unit: rateMiB, bar: 1.2, writes: true, seals: true, run: writeLarge},
	{name: "read, cold", needs: "write + fsync", unit: rateMiB, bar: 1.5, cold: true, run: readLarge},
	{name: "read again", needs: "write + fsync", unit: rateMiB, bar: 3, run: readLarge},
	{name: "random read 4 KiB, cold", needs: "write + fsync", unit: rateOps, bar: 1.3, cold: true, run: randomRead},
	{name: "random write 4 KiB + fsync", needs: "write + fsync", unit: rateOps, bar: 1.3, writes: true, run: randomWrite},
	{name: "append 4 KiB + fsync", unit: timeMs, bar: 1, writes: true, run: appendSync},
	{name: "create 4 KiB file", unit: rateOps, bar: 2, meta: true, writes: true, seals: true, run: create},
	{name: "stat, cold", needs: "create 4 KiB file", unit: rateOps, bar: 1.5, meta: true, cold: true, run: statAll},
	{name: "read 4 KiB file, cold", needs: "create 4 KiB file", unit: rateOps, bar: 1.5, cold: true, run: readAll},
	{name: "readdir, cold", unit: rateOps, bar: 1.5, meta: true, cold: true, prepare: makeNames, run: readdir},
	{name: "ls -l of 1000, cold", needs: "create 4 KiB file", unit: timeMs, bar: 1.5, meta: true, cold: true, run: list},
	{name: "rename", needs: "create 4 KiB file", unit: rateOps, bar: 1.5, meta: true, writes: true, run: rename},
	{name: "unlink", needs: "rename", unit: rateOps, bar: 2, meta: true, writes: true, run: unlink},
	{name: "create, 4 threads", unit: rateOps, writes: true, run: createBeside(4)},
	{name: "create, 64 threads", unit: rateOps, writes: true, run: createBeside(64)},
	{name: "mkdir", needs: "rename", unit: rateOps, bar: 1.5, meta: true, writes: true, run: mkdirs},
	{name: "cp -a of the tree", unit: timeSec, bar: 1.2, writes: true, seals: true, run: tool("cp -a $TREE $ROOT/tree")},
	{name: "cp -a, again", unit: timeSec, writes: true, run: tool("cp -a $TREE $ROOT/tree2")},
	{name: "find, cold", needs: "cp -a of the tree", unit: timeSec, bar: 1.3, meta: true, cold: true, run: tool("find $ROOT/tree | wc -l")},
	{name: "tar out, cold", needs: "cp -a of the tree", unit: timeSec, bar: 1.3, cold: true, run: tool("tar -C $ROOT -cf - tree | cat >/dev/null")},
	{name: "diff -r, cold", needs: "cp -a of the tree", unit: timeSec, bar: 1.3, cold: true, run: tool("diff -r $TREE $ROOT/tree")},
	{name: "rm -rf", needs: "cp -a of the tree", unit: timeSec, bar: 1.8, meta: true, cold: true, writes: true, run: tool("rm -rf $ROOT/tree")},
}

// wanted tells for each row whether it has to be run, and whether for itself.
func wanted(only *regexp.Regexp) (run, show map[string]bool) {
	run, show = map[string]bool{}, map[string]bool{}
	for i := len(rows) - 1; i >= 0; i-- {
		r := rows[i]
		show[r.name] = only.MatchString(r.name)
		run[r.name] = run[r.name] || show[r.name]
		if run[r.name] && r.needs != "" {
			run[r.needs] = true
		}
	}
	return run, show
}

// tool runs a shell command.
func tool(script string) func(*env) (float64, error) {
	return func(e *env) (float64, error) {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Env = append(os.Environ(), "TREE="+e.tree, "ROOT="+e.root)
		return 1, quiet(cmd)
	}
}

// fill makes bytes that no other chunk has.
func fill(p []byte, seed uint64) {
	x := seed*0x9E3779B97F4A7C15 | 1
	for i := 0; i+8 <= len(p); i += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(p[i:], x)
	}
}

func writeLarge(e *env) (float64, error) {
	f, err := os.Create(e.path("large"))
	if err != nil {
		return 0, err
	}
	p := make([]byte, 1<<20)
	fill(p, 1)
	for i := range e.mib {
		fill(p[:4096], uint64(i)) // a whole chunk would cost more than its write
		if _, err := f.Write(p); err != nil {
			return 0, errors.Join(err, f.Close())
		}
	}
	return float64(e.mib), errors.Join(f.Sync(), f.Close())
}

func readLarge(e *env) (float64, error) {
	f, err := os.Open(e.path("large"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	if n != int64(e.mib)<<20 {
		return 0, fmt.Errorf("%d bytes read: %w", n, err)
	}
	return float64(e.mib), err
}

func randomRead(e *env) (float64, error) {
	f, err := os.Open(e.path("large"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		return 0, err
	}
	const n = 4000
	r, p := rand.New(rand.NewPCG(1, 2)), make([]byte, 4096)
	for range n {
		if _, err := f.ReadAt(p, r.Int64N(int64(e.mib)<<8)<<12); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func randomWrite(e *env) (float64, error) {
	f, err := os.OpenFile(e.path("large"), os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	const n = 4000
	r, p := rand.New(rand.NewPCG(3, 4)), make([]byte, 4096)
	for i := range n {
		fill(p, uint64(i))
		if _, err := f.WriteAt(p, r.Int64N(int64(e.mib)<<8)<<12); err != nil {
			return 0, errors.Join(err, f.Close())
		}
	}
	return n, errors.Join(f.Sync(), f.Close())
}

func appendSync(e *env) (float64, error) {
	f, err := os.OpenFile(e.path("log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	const n = 300
	p := make([]byte, 4096)
	for i := range n {
		fill(p, uint64(i))
		_, err := f.Write(p)
		if err := errors.Join(err, f.Sync()); err != nil {
			return 0, errors.Join(err, f.Close())
		}
	}
	return n, f.Close()
}

func create(e *env) (float64, error) {
	if err := os.Mkdir(e.path("small"), 0o755); err != nil {
		return 0, err
	}
	p := make([]byte, 4096)
	for i := range e.files {
		fill(p, uint64(i))
		if err := os.WriteFile(e.small(i), p, 0o644); err != nil {
			return 0, err
		}
	}
	return float64(e.files), nil
}

// createBeside has threads make small files, in one folder.
func createBeside(threads int) func(*env) (float64, error) {
	return func(e *env) (float64, error) {
		dir := e.path(fmt.Sprint("by", threads))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return 0, err
		}
		var g errgroup.Group
		for t := range threads {
			g.Go(func() error {
				p := make([]byte, 4096)
				for i := t; i < e.files; i += threads {
					fill(p, uint64(i))
					if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), p, 0o644); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return float64(e.files), g.Wait()
	}
}

// each does something with every small file.
func (e *env) each(do func(i int) error) (float64, error) {
	for i := range e.files {
		if err := do(i); err != nil {
			return 0, err
		}
	}
	return float64(e.files), nil
}

func statAll(e *env) (float64, error) {
	return e.each(func(i int) error { return unix.Stat(e.small(i), new(unix.Stat_t)) })
}

func readAll(e *env) (float64, error) {
	p := make([]byte, 4096)
	return e.each(func(i int) error {
		b, err := os.ReadFile(e.small(i))
		fill(p, uint64(i))
		if err == nil && !bytes.Equal(b, p) {
			err = fmt.Errorf("%s: wrong bytes", e.small(i))
		}
		return err
	})
}

// makeNames fills the folder that readdir lists.
func makeNames(e *env) error {
	if err := os.Mkdir(e.path("names"), 0o755); err != nil {
		return err
	}
	for i := range e.names {
		if err := unix.Mknod(filepath.Join(e.path("names"), fmt.Sprint("name-", i)), unix.S_IFREG|0o644, 0); err != nil {
			return err
		}
	}
	return nil
}

func readdir(e *env) (float64, error) {
	f, err := os.Open(e.path("names"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if len(names) != e.names {
		return 0, fmt.Errorf("%d names: %w", len(names), err)
	}
	return float64(len(names)), err
}

// list is ls -l of the small files, per 1000.
func list(e *env) (float64, error) {
	_, err := tool("ls -l $ROOT/small >/dev/null")(e)
	return float64(e.files) / 1000, err
}

func rename(e *env) (float64, error) {
	return e.each(func(i int) error { return unix.Rename(e.small(i), e.small(i)+".new") })
}

func unlink(e *env) (float64, error) {
	return e.each(func(i int) error { return unix.Unlink(e.small(i) + ".new") })
}

func mkdirs(e *env) (float64, error) {
	return e.each(func(i int) error { return unix.Mkdir(e.small(i), 0o755) })
}
