package tree

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"cafs/mount/tree/index"
)

// RefGrave is the ref of the index that has the grave's inode number.
const RefGrave = "tree/grave"

// grave is a directory without a name, in which trees that were replaced wait
// to be removed in the background.
type grave struct{ n Ino }

func (g *grave) ino() Ino { return g.n }

// openGrave finds the grave, or makes it.
func (t *Tree) openGrave() error {
	val, err := t.db.Ref(RefGrave)
	if err == nil && len(val) == 8 {
		t.grave.n = Ino(binary.BigEndian.Uint64(val))
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ino, err := t.newIno()
	if err != nil {
		return err
	}
	stamp := now()
	rec := index.Inode{Kind: index.Dir, Perm: 0o700, Nlink: 2, Parent: RootIno, Unsealed: true,
		Atime: stamp, Mtime: stamp, Ctime: stamp, Btime: stamp}
	b := t.db.NewBatch()
	defer b.Close()
	b.SetInode(ino, &rec)
	b.SetRef(RefGrave, binary.BigEndian.AppendUint64(nil, uint64(ino)))
	if err := b.Commit(); err != nil {
		return fmt.Errorf("tree: make the grave: %w", err)
	}
	t.grave.n = ino
	return nil
}

// bury puts the entry d of the locked directory p, which leads to the locked
// inode n, into the locked directory g. The caller holds ns for writing.
func (t *Tree) bury(e *edit, n, p *inode, d Dirent, g *inode) {
	t.removeEntry(e, n, p, d)
	to := t.addName(e, g, strconv.FormatUint(e.rec(g).Next+1, 36)+"-"+strconv.FormatUint(uint64(n.ino), 36), n.ino, d.Kind)
	t.repoint(e, n, p, d.Cookie, g, to.Cookie)
}

// emptyGrave removes what is in the grave.
func (t *Tree) emptyGrave(ctx context.Context) error { return t.removeBelow(ctx, t.grave.ino()) }

// removeBelow removes all entries of a directory that nobody can reach by name.
func (t *Tree) removeBelow(ctx context.Context, dir Ino) error {
	const some = 1024 // entries at a time: the listing must not see its own end move away
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		var entries []Dirent
		for d, err := range t.db.Dirents(dir, 0) {
			if err != nil {
				return err
			}
			if entries = append(entries, d); len(entries) == some {
				break
			}
		}
		if len(entries) == 0 {
			return nil
		}
		for _, d := range entries {
			if err := t.removeTree(ctx, dir, d); err != nil {
				return err
			}
		}
	}
}

func (t *Tree) removeTree(ctx context.Context, dir Ino, d Dirent) error {
	var err error
	if d.Kind != index.Dir {
		err = t.Unlink(dir, d.Name)
	} else if err = t.removeBelow(ctx, d.Ino); err == nil {
		err = t.rmdir(dir, d.Name, true)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody who still had it open removed it
	}
	return err
}
