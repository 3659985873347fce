package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"cafs/shard"
	"cafs/store/disk"
)

// Reshard changes the sharding function of the store in root to fn, in place.
// Nobody may have the store open. It may be interrupted anywhere, by ctx, an
// error or a crash, and called again with the same or any other function; until
// it returns nil the store cannot be opened (ErrResharding), by flatfs neither.
// progress, which may be nil, is called with the number of blocks moved so far.
//
// It goes by what it finds, not by what it did before: every block in a folder
// that is not its own is renamed there. So no step can be missed and none hurts
// when repeated.
func Reshard(ctx context.Context, root disk.FS, fn shard.Func, progress func(moved int64)) error {
	if err := reshard(ctx, root, fn, progress); err != nil {
		return fmt.Errorf("store: reshard: %w", err)
	}
	return nil
}

func reshard(ctx context.Context, root disk.FS, fn shard.Func, progress func(moved int64)) error {
	if fn.IsZero() {
		return ErrLayout
	}
	text, err := readSmall(root, shardingName)
	if notExist(err) {
		return fmt.Errorf("no %s file: %w", shardingName, ErrNotStore)
	}
	if err != nil {
		return err
	}
	if strings.TrimSpace(text) == fn.String() {
		return nil
	}
	if !strings.HasPrefix(text, betweenPrefix) {
		if _, err := shard.Parse(text); err != nil {
			return fmt.Errorf("%w: %w", ErrLayout, err)
		}
		if err := emptyLogs(root); err != nil {
			return err
		}
	}
	if err := writeSmall(root, shardingName, betweenPrefix+"to "+fn.String()+"\n", filePerm); err != nil {
		return err
	}
	m := mover{ctx: ctx, root: root, fn: fn, progress: progress}
	m.folders.init(root)
	defer m.folders.close()
	// First the folders, durably, with what an interrupted run moved: a crash that
	// lost one would lose the blocks that were moved into it.
	if err := m.walk(".", 0, m.makeFolders); err != nil {
		return err
	}
	if err := root.SyncFS(); err != nil {
		return err
	}
	m.seen = nil
	if err := m.walk(".", 0, m.moveAll); err != nil {
		return err
	}
	// The names in their new folders, before the old folders go and before the
	// text that sends readers to the new ones.
	if err := root.SyncFS(); err != nil {
		return err
	}
	for _, dir := range m.seen {
		m.removeEmpty(dir)
	}
	return writeLayout(root, fn)
}

// emptyLogs gives files to the blocks in logs that an unclean end left.
func emptyLogs(root disk.FS) error {
	names, err := root.ReadDir(stagingName)
	if err != nil {
		return ignoreNotExist(err)
	}
	for _, n := range names {
		if _, ok := logNumber(n.Name); ok {
			d, err := Open(root, Options{})
			if err != nil {
				return err
			}
			return d.Close()
		}
	}
	return nil
}

// mover moves blocks to the folders of fn.
type mover struct {
	ctx      context.Context
	root     disk.FS
	fn       shard.Func
	folders  folders
	made     map[string]struct{} // folders known to be there
	seen     []string            // folders that were walked
	moved    int64
	progress func(int64)
}

// walk calls f with the blocks that are in the folder at dir and below, at most
// two levels deep, and do not belong there.
func (m *mover) walk(dir string, depth int, f func(dir string, blocks []string) error) error {
	names, err := m.root.ReadDir(dir)
	if err != nil {
		return err
	}
	var blocks []string
	for _, n := range names {
		switch {
		case strings.HasPrefix(n.Name, "."):
		case n.Dir && depth < 2:
			if err := m.walk(path.Join(dir, n.Name), depth+1, f); err != nil {
				return err
			}
		case !n.Dir && depth > 0 && strings.HasSuffix(n.Name, suffix):
			// Also what is not named by a multihash, as in stores of old Kubo
			// versions: flatfs looks for it by the same function.
			if m.fn.Dir(blockKey(n.Name)) != dir {
				blocks = append(blocks, n.Name)
			}
		}
	}
	if depth > 0 {
		m.seen = append(m.seen, dir) // below before above
	}
	return f(dir, blocks)
}

// madeLimit bounds the folders that are remembered.
const madeLimit = 64 << 10

// makeFolders makes the folders that blocks will be moved to.
func (m *mover) makeFolders(_ string, blocks []string) error {
	for _, name := range blocks {
		to := m.fn.Dir(blockKey(name))
		if _, ok := m.made[to]; ok {
			continue
		}
		if err := m.ctx.Err(); err != nil {
			return err
		}
		if err := m.folders.mkdir(to); err != nil {
			return err
		}
		if m.made == nil || len(m.made) >= madeLimit {
			m.made = map[string]struct{}{}
		}
		m.made[to] = struct{}{}
	}
	return nil
}

func (m *mover) moveAll(dir string, blocks []string) error {
	for _, name := range blocks {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		if err := m.move(dir, name); err != nil {
			return err
		}
	}
	return nil
}

// removeEmpty removes a folder if it is empty.
func (m *mover) removeEmpty(dir string) {
	if names, err := m.root.ReadDir(dir); err == nil && len(names) == 0 {
		m.root.Remove(dir) // an empty folder left over does no harm
	}
}

func (m *mover) move(dir, name string) error {
	to := m.fn.Dir(blockKey(name))
	target, err := m.folders.get(to, false)
	if err != nil {
		return err
	}
	defer target.release()
	source := dir + "/" + name
	if _, err := target.Stat(name); err == nil {
		// Two files of one block, which no interrupted reshard leaves. Never
		// replace a good one by a bad one.
		good, err := m.intact(to + "/" + name)
		if err != nil {
			return err
		}
		if good {
			return m.root.Remove(source)
		}
	} else if !notExist(err) {
		return err
	}
	if err := m.root.Rename(source, target.FS, name); err != nil {
		return err
	}
	m.moved++
	if m.progress != nil {
		m.progress(m.moved)
	}
	return nil
}

// intact reads and hashes the block in a file.
func (m *mover) intact(name string) (bool, error) {
	h, ok := parseName(path.Base(name))
	if !ok {
		return false, fmt.Errorf("%s is there twice and its name does not tell which is right", name)
	}
	f, err := m.root.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || size > MaxBlock {
		return false, err
	}
	b := make([]byte, size)
	if _, err := readFull(f, b, 0); err != nil {
		return false, err
	}
	err = Verify(h, b)
	if errors.Is(err, ErrCorrupt) {
		return false, nil
	}
	return err == nil, err
}
