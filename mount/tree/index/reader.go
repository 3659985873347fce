package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"

	"github.com/cockroachdb/pebble/v2"
)

// errAbsent is what look-ups of absent records return. One value: look-ups that
// find nothing are frequent.
var errAbsent = fmt.Errorf("index: %w", fs.ErrNotExist)

// reader answers look-ups from the newest state or from a snapshot of it. All
// its methods may be called concurrently.
type reader struct {
	db *DB
	p  pebble.Reader

	newest bool // no snapshot
}

// Snapshot is the state at one moment between two commits. It holds back the
// engine's clean-up: close it soon, and before the DB.
type Snapshot struct {
	reader
	s *pebble.Snapshot
}

// Snapshot returns the present state: every batch whose Commit returned, each
// batch whole or not at all.
func (db *DB) Snapshot() *Snapshot {
	s := db.p.NewSnapshot()
	return &Snapshot{reader: reader{db: db, p: s}, s: s}
}

// Close gives the snapshot up. No iterator over it may be running.
//
// The engine looks then for something to merge (v2.1.7: snapshot.go 122), for
// which it waits until a write of its manifest has ended: that takes a flush of
// the disk, or, when the index has failed, until it is closed (guard).
func (s *Snapshot) Close() {
	s.db.snapshots.Go(func() {
		if err := s.s.Close(); err != nil {
			s.db.log.Error("index: closing a snapshot", "err", err)
		}
	})
}

// get looks a key up. The value is valid until the closer is closed. The key
// buffer is given back.
func (r *reader) get(k *key) ([]byte, io.Closer, error) {
	defer k.free()
	if r.db.closed.Load() {
		return nil, nil, ErrClosed
	}
	v, c, err := r.p.Get(k.b)
	if err != nil {
		if errors.Is(err, pebble.ErrNotFound) {
			return nil, nil, errAbsent
		}
		return nil, nil, fmt.Errorf("index: %w", err)
	}
	return v, c, nil
}

// Inode returns the record of an inode. Error: fs.ErrNotExist.
func (r *reader) Inode(ino Ino) (Inode, error) {
	k := newKey()
	k.b = key1(k.b, keyInode, uint64(ino))
	v, c, err := r.get(k)
	if err != nil {
		return Inode{}, err
	}
	in, err := decodeInode(v)
	if err != nil {
		err = fmt.Errorf("index: inode %d: %w", ino, err)
	}
	return in, closeAfter(c, err)
}

// Dirent looks a name up in a directory. Error: fs.ErrNotExist.
func (r *reader) Dirent(dir Ino, name string) (Dirent, error) {
	k := newKey()
	k.b = keyName(k.b, keyDirent, uint64(dir), name)
	if r.newest && r.db.absent.has(k.b) {
		k.free()
		return Dirent{}, errAbsent
	}
	v, c, err := r.get(k)
	if err != nil {
		return Dirent{}, err
	}
	d, err := decodeDirent(name, v)
	if err != nil {
		err = fmt.Errorf("index: dirent %q in %d: %w", name, dir, err)
	}
	return d, closeAfter(c, err)
}

// DirentAt looks a cookie up in a directory. Error: fs.ErrNotExist.
func (r *reader) DirentAt(dir Ino, cookie uint64) (Dirent, error) {
	k := newKey()
	k.b = keyCookieOf(k.b, dir, cookie)
	v, c, err := r.get(k)
	if err != nil {
		return Dirent{}, err
	}
	d, err := decodeCookie(cookie, v)
	if err != nil {
		err = fmt.Errorf("index: dirent at %d in %d: %w", cookie, dir, err)
	}
	return d, closeAfter(c, err)
}

// Xattr returns the value of an extended attribute. Error: fs.ErrNotExist.
func (r *reader) Xattr(ino Ino, name string) ([]byte, error) {
	k := newKey()
	k.b = keyName(k.b, keyXattr, uint64(ino), name)
	return r.value(k)
}

// Ref returns a named value. Error: fs.ErrNotExist.
func (r *reader) Ref(name string) ([]byte, error) {
	k := newKey()
	k.b = keyText(k.b, keyRef, name)
	return r.value(k)
}

// value returns a copy of the value under a key.
func (r *reader) value(k *key) ([]byte, error) {
	v, c, err := r.get(k)
	if err != nil {
		return nil, err
	}
	copied := append([]byte{}, v...)
	return copied, closeAfter(c, nil)
}

func closeAfter(c io.Closer, err error) error {
	if cerr := c.Close(); err == nil && cerr != nil {
		return fmt.Errorf("index: %w", cerr)
	}
	return err
}

// Dirents lists a directory's entries with cookies below before, from the
// greatest down; 0 stands for all of them. So a reader that goes on where it
// stopped never meets what was entered since, and comes to an end.
func (r *reader) Dirents(dir Ino, before uint64) iter.Seq2[Dirent, error] {
	prefix := key1(nil, keyCookie, uint64(dir))
	// Without before, the greatest cookie there can be comes first.
	return scan(r, keyCookieOf(nil, dir, before-1), prefixEnd(prefix), func(k, v []byte) (Dirent, error) {
		cookie, ok := keyNum(k, 1)
		if !ok {
			return Dirent{}, ErrCorrupt
		}
		return decodeCookie(^cookie, v)
	})
}

// Extents lists an inode's extents by offset.
func (r *reader) Extents(ino Ino) iter.Seq2[Extent, error] {
	return scanPrefix(r, key1(nil, keyExtent, uint64(ino)), func(k, v []byte) (Extent, error) {
		off, ok := keyNum(k, 1)
		if !ok {
			return Extent{}, ErrCorrupt
		}
		return decodeExtent(int64(off), v)
	})
}

// Backrefs lists the recorded names of an inode.
func (r *reader) Backrefs(ino Ino) iter.Seq2[Backref, error] {
	return scanPrefix(r, key1(nil, keyBackref, uint64(ino)), func(k, _ []byte) (Backref, error) {
		parent, ok1 := keyNum(k, 1)
		cookie, ok2 := keyNum(k, 2)
		if !ok1 || !ok2 {
			return Backref{}, ErrCorrupt
		}
		return Backref{Parent: Ino(parent), Cookie: cookie}, nil
	})
}

// Changed lists the names of a directory recorded by SetChanged, sorted.
func (r *reader) Changed(dir Ino) iter.Seq2[string, error] {
	return scanPrefix(r, key1(nil, keyChanged, uint64(dir)), func(k, _ []byte) (string, error) {
		name, ok := keyTail(k)
		if !ok {
			return "", ErrCorrupt
		}
		return name, nil
	})
}

// Unrecorded lists the names of a directory noted by SetUnrecorded, sorted.
func (r *reader) Unrecorded(dir Ino) iter.Seq2[string, error] {
	return scanPrefix(r, key1(nil, keyStale, uint64(dir)), func(k, _ []byte) (string, error) {
		name, ok := keyTail(k)
		if !ok {
			return "", ErrCorrupt
		}
		return name, nil
	})
}

// LinkAt is an inode that had several names when SetLinkUnrecorded noted it.
type LinkAt struct {
	ID  [16]byte
	Ino Ino
}

// UnrecordedLinks lists what SetLinkUnrecorded noted.
func (r *reader) UnrecordedLinks() iter.Seq2[LinkAt, error] {
	return scanPrefix(r, []byte{keyLink}, func(k, v []byte) (LinkAt, error) {
		l := LinkAt{}
		if len(k) != 1+len(l.ID) {
			return l, ErrCorrupt
		}
		copy(l.ID[:], k[1:])
		n, err := decodeNumber(v)
		l.Ino = Ino(n)
		return l, err
	})
}

// Xattrs lists an inode's extended attributes by name.
func (r *reader) Xattrs(ino Ino) iter.Seq2[Xattr, error] {
	return scanPrefix(r, key1(nil, keyXattr, uint64(ino)), func(k, v []byte) (Xattr, error) {
		name, ok := keyTail(k)
		if !ok {
			return Xattr{}, ErrCorrupt
		}
		return Xattr{Name: name, Value: append([]byte{}, v...)}, nil
	})
}

// Orphans lists inodes without a name.
func (r *reader) Orphans() iter.Seq2[Ino, error] {
	return scanPrefix(r, []byte{keyOrphan}, func(k, _ []byte) (Ino, error) {
		ino, ok := keyNum(k, 0)
		if !ok {
			return 0, ErrCorrupt
		}
		return Ino(ino), nil
	})
}

// Segments lists the staging segments.
func (r *reader) Segments() iter.Seq2[Segment, error] {
	return scanPrefix(r, []byte{keySegment}, func(k, v []byte) (Segment, error) {
		id, ok := keyNum(k, 0)
		if !ok {
			return Segment{}, ErrCorrupt
		}
		live, err := decodeSigned(v)
		return Segment{ID: id, Live: live}, err
	})
}

// Refs lists named values whose name begins with prefix, by name.
func (r *reader) Refs(prefix string) iter.Seq2[Ref, error] {
	return scanPrefix(r, keyText(nil, keyRef, prefix), func(k, v []byte) (Ref, error) {
		return Ref{Name: string(k[1:]), Value: append([]byte{}, v...)}, nil
	})
}

// InodeAt is an inode with its number.
type InodeAt struct {
	Ino Ino
	Inode
}

// Inodes lists inodes with numbers above after, by number.
func (r *reader) Inodes(after Ino) iter.Seq2[InodeAt, error] {
	return scan(r, key1(nil, keyInode, uint64(after)+1), []byte{keyInode + 1}, func(k, v []byte) (InodeAt, error) {
		ino, ok := keyNum(k, 0)
		if !ok {
			return InodeAt{}, ErrCorrupt
		}
		in, err := decodeInode(v)
		return InodeAt{Ino: Ino(ino), Inode: in}, err
	})
}

func scanPrefix[T any](r *reader, prefix []byte, decode func(k, v []byte) (T, error)) iter.Seq2[T, error] {
	return scan(r, prefix, prefixEnd(prefix), decode)
}

// scan yields the decoded records with lower <= key < upper. A record that
// cannot be decoded, or cannot be read, ends it with an error.
func scan[T any](r *reader, lower, upper []byte, decode func(k, v []byte) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		it, err := r.iter(lower, upper)
		if err != nil {
			yield(zero, err)
			return
		}
		for ok := it.First(); ok; ok = it.Next() {
			v, err := it.ValueAndErr()
			if err != nil {
				break // Close reports it
			}
			t, err := decode(it.Key(), v)
			if err != nil {
				err = errors.Join(fmt.Errorf("index: key %x: %w", it.Key(), err), it.Close())
				yield(zero, err)
				return
			}
			if !yield(t, nil) {
				if err := it.Close(); err != nil {
					r.db.log.Error("index: iterate", "err", err)
				}
				return
			}
		}
		if err := it.Close(); err != nil {
			yield(zero, fmt.Errorf("index: iterate: %w", err))
		}
	}
}

// keys returns up to limit keys of a range.
func (r *reader) keys(lower, upper []byte, limit int) ([][]byte, error) {
	it, err := r.iter(lower, upper)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for ok := it.First(); ok && len(keys) < limit; ok = it.Next() {
		keys = append(keys, append([]byte(nil), it.Key()...))
	}
	if err := it.Close(); err != nil {
		return nil, fmt.Errorf("index: iterate: %w", err)
	}
	return keys, nil
}

func (r *reader) iter(lower, upper []byte) (*pebble.Iterator, error) {
	if r.db.closed.Load() {
		return nil, ErrClosed
	}
	it, err := r.p.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, fmt.Errorf("index: iterate: %w", err)
	}
	return it, nil
}

// number reads a record that is one number; 0 when absent.
func (r *reader) number(kind byte) (uint64, error) {
	k := newKey()
	k.b = append(k.b[:0], kind)
	v, c, err := r.get(k)
	if errors.Is(err, errAbsent) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, size := binary.Uvarint(v)
	if size != len(v) {
		err = fmt.Errorf("index: key %q: %w", kind, ErrCorrupt)
	}
	return n, closeAfter(c, err)
}
