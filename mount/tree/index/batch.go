package index

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Batch collects changes that become visible, and durable, together or not at
// all. It belongs to one goroutine at a time. Values are copied. Later changes
// of a key win over earlier ones of the same batch. Two batches that change the
// same name must not be filled and committed at the same time.
type Batch struct {
	db  *DB
	p   *pebble.Batch
	key []byte
	val []byte
	err error // the first change that could not be recorded; Commit returns it

	extents pending // were set: they are not yet where DeleteExtents looks
	xattrs  pending // likewise
	changed pending // likewise

	removed []string // keys of names that are not there after the batch, a few at most
}

// pending tells of which inodes records of a kind were set in a batch.
type pending struct {
	of   Ino
	many bool // of others too
}

func (p *pending) add(ino Ino) {
	if p.of == 0 {
		p.of = ino
	}
	p.many = p.many || p.of != ino
}

func (p *pending) has(ino Ino) bool { return p.many || p.of == ino }

// maxRemoved is how many removed names a batch remembers: one that removes more
// is not about a single name.
const maxRemoved = 4

var batchPool = sync.Pool{New: func() any { return new(Batch) }}

// NewBatch returns an empty batch. Close it when done.
func (db *DB) NewBatch() *Batch {
	b := batchPool.Get().(*Batch)
	b.db = db
	b.p = db.p.NewBatch()
	return b
}

// Close drops what was not committed and gives the batch back; it must not be
// used afterwards.
func (b *Batch) Close() {
	b.Reset()
	if err := b.p.Close(); err != nil {
		b.db.log.Error("index: close batch", "err", err)
	}
	b.db, b.p = nil, nil
	batchPool.Put(b)
}

// Reset drops what was not committed.
func (b *Batch) Reset() {
	b.p.Reset()
	b.err = nil
	b.extents, b.xattrs, b.changed = pending{}, pending{}, pending{}
	clear(b.removed)
	b.removed = b.removed[:0]
}

// Len is the number of record changes collected.
func (b *Batch) Len() int { return int(b.p.Count()) }

// Commit makes the changes visible to readers and enters them into the log, in
// the order of the calls of Commit; a later Sync makes them durable. It may wait
// while the engine is behind with compaction. Whatever comes back, the batch is
// empty afterwards and can be filled again. After ErrReadOnly readers of this
// process may or may not see the changes; after other errors they do not.
func (b *Batch) Commit() error {
	defer b.Reset()
	if b.err != nil {
		return b.err
	}
	if b.p.Empty() {
		return b.db.usable()
	}
	if err := b.db.apply(b.p); err != nil {
		return err
	}
	for _, key := range b.removed {
		b.db.absent.add(key)
	}
	return nil
}

// CommitSync is Commit followed by Sync.
func (b *Batch) CommitSync(ctx context.Context) error {
	if err := b.Commit(); err != nil {
		return err
	}
	return b.db.Sync(ctx)
}

// SetInode writes the record of an inode.
func (b *Batch) SetInode(ino Ino, in *Inode) {
	if ino == 0 || ino >= maxIno {
		b.fail(fmt.Errorf("index: set inode %d: number out of range", ino))
		return
	}
	b.key = key1(b.key, keyInode, uint64(ino))
	b.val = appendInode(b.val[:0], in)
	b.set()
}

// DeleteInode removes the record of an inode, and nothing else of it.
func (b *Batch) DeleteInode(ino Ino) {
	b.key = key1(b.key, keyInode, uint64(ino))
	b.delete()
}

// SetDirent enters a name into a directory, findable by name and by cookie. To
// give an existing name another cookie, delete the old entry first.
func (b *Batch) SetDirent(dir Ino, d Dirent) {
	if d.Name == "" {
		b.fail(fmt.Errorf("index: set dirent in %d: empty name", dir))
		return
	}
	b.key = keyName(b.key, keyDirent, uint64(dir), d.Name)
	b.val = appendUvarint(appendEntry(b.val[:0], d.Ino, d.Kind), d.Cookie)
	b.set()
	b.db.absent.drop(b.key)
	b.removed = slices.DeleteFunc(b.removed, func(k string) bool { return k == string(b.key) })
	b.key = keyCookieOf(b.key, dir, d.Cookie)
	b.val = append(appendEntry(b.val[:0], d.Ino, d.Kind), d.Name...)
	b.set()
}

// DeleteDirent removes the entry with d's name and d's cookie.
func (b *Batch) DeleteDirent(dir Ino, d Dirent) {
	b.key = keyName(b.key, keyDirent, uint64(dir), d.Name)
	b.delete()
	if len(b.removed) < maxRemoved {
		b.removed = append(b.removed, string(b.key))
	}
	b.key = keyCookieOf(b.key, dir, d.Cookie)
	b.delete()
}

// SetBackref records that ino has a name in parent, under cookie.
func (b *Batch) SetBackref(ino, parent Ino, cookie uint64) {
	b.key = appendUint64(key2(b.key, keyBackref, uint64(ino), uint64(parent)), cookie)
	b.val = b.val[:0]
	b.set()
}

// DeleteBackref undoes SetBackref.
func (b *Batch) DeleteBackref(ino, parent Ino, cookie uint64) {
	b.key = appendUint64(key2(b.key, keyBackref, uint64(ino), uint64(parent)), cookie)
	b.delete()
}

// SetExtent writes an extent, in place of one at the same offset.
func (b *Batch) SetExtent(ino Ino, e Extent) {
	if e.Off < 0 || e.Len <= 0 || e.Kind == Inline && int64(len(e.Data)) != e.Len {
		b.fail(fmt.Errorf("index: set extent of %d: bad range %d+%d", ino, e.Off, e.Len))
		return
	}
	b.extents.add(ino)
	b.key = key2(b.key, keyExtent, uint64(ino), uint64(e.Off))
	b.val = appendExtent(b.val[:0], &e)
	b.set()
}

// DeleteExtent removes the extent that begins at off.
func (b *Batch) DeleteExtent(ino Ino, off int64) {
	b.key = key2(b.key, keyExtent, uint64(ino), uint64(off))
	b.delete()
}

// DeleteExtents removes all extents of an inode: those committed when it is
// called and those set earlier in this batch.
func (b *Batch) DeleteExtents(ino Ino) { b.deleteAll(keyExtent, ino, b.extents.has(ino)) }

// SetChanged records that the entry of this name changed since the directory's
// CID was computed.
func (b *Batch) SetChanged(dir Ino, name string) {
	b.changed.add(dir)
	b.key = keyName(b.key, keyChanged, uint64(dir), name)
	b.val = b.val[:0]
	b.set()
}

// ClearChanged undoes SetChanged for the names given.
func (b *Batch) ClearChanged(dir Ino, names ...string) {
	for _, name := range names {
		b.key = keyName(b.key, keyChanged, uint64(dir), name)
		b.delete()
	}
}

// ClearAllChanged undoes SetChanged for all names of a directory, with the
// reach of DeleteExtents.
func (b *Batch) ClearAllChanged(dir Ino) { b.deleteAll(keyChanged, dir, b.changed.has(dir)) }

// SetUnrecorded notes that the entry of this name, its attributes or what is
// below it are not what the directory's Record says.
func (b *Batch) SetUnrecorded(dir Ino, name string) {
	b.key = keyName(b.key, keyStale, uint64(dir), name)
	b.val = b.val[:0]
	b.set()
}

// ClearUnrecorded undoes SetUnrecorded.
func (b *Batch) ClearUnrecorded(dir Ino, name string) {
	b.key = keyName(b.key, keyStale, uint64(dir), name)
	b.delete()
}

// ClearAllUnrecorded undoes SetUnrecorded for all names of a directory that
// were committed before.
func (b *Batch) ClearAllUnrecorded(dir Ino) { b.deleteAll(keyStale, dir, false) }

// SetLinkUnrecorded notes that the inode with this link id is not as the last
// commit recorded it.
func (b *Batch) SetLinkUnrecorded(id [16]byte, ino Ino) {
	b.key = keyText(b.key, keyLink, string(id[:]))
	b.val = appendUvarint(b.val[:0], uint64(ino))
	b.set()
}

// ClearLinkUnrecorded undoes SetLinkUnrecorded.
func (b *Batch) ClearLinkUnrecorded(id [16]byte) {
	b.key = keyText(b.key, keyLink, string(id[:]))
	b.delete()
}

// SetXattr writes an extended attribute.
func (b *Batch) SetXattr(ino Ino, name string, value []byte) {
	b.xattrs.add(ino)
	b.key = keyName(b.key, keyXattr, uint64(ino), name)
	b.val = append(b.val[:0], value...)
	b.set()
}

// DeleteXattr removes an extended attribute.
func (b *Batch) DeleteXattr(ino Ino, name string) {
	b.key = keyName(b.key, keyXattr, uint64(ino), name)
	b.delete()
}

// DeleteXattrs removes all extended attributes of an inode, with the reach of
// DeleteExtents.
func (b *Batch) DeleteXattrs(ino Ino) { b.deleteAll(keyXattr, ino, b.xattrs.has(ino)) }

// AddOrphan records an inode that has no name but is still open.
func (b *Batch) AddOrphan(ino Ino) {
	b.key = key1(b.key, keyOrphan, uint64(ino))
	b.val = b.val[:0]
	b.set()
}

// DeleteOrphan undoes AddOrphan.
func (b *Batch) DeleteOrphan(ino Ino) {
	b.key = key1(b.key, keyOrphan, uint64(ino))
	b.delete()
}

// AddSegment adds delta to the live bytes of a staging segment, which need not
// exist yet.
func (b *Batch) AddSegment(seg uint64, delta int64) {
	b.key = key1(b.key, keySegment, seg)
	b.val = appendVarint(b.val[:0], delta)
	b.fail(b.p.Merge(b.key, b.val, nil))
}

// DeleteSegment forgets a staging segment.
func (b *Batch) DeleteSegment(seg uint64) {
	b.key = key1(b.key, keySegment, seg)
	b.delete()
}

// SetRef writes a named value.
func (b *Batch) SetRef(name string, value []byte) {
	b.key = keyText(b.key, keyRef, name)
	b.val = append(b.val[:0], value...)
	b.set()
}

// DeleteRef removes a named value.
func (b *Batch) DeleteRef(name string) {
	b.key = keyText(b.key, keyRef, name)
	b.delete()
}

func (b *Batch) set() { b.fail(b.p.Set(b.key, b.val, nil)) }

func (b *Batch) delete() { b.fail(b.p.Delete(b.key, nil)) }

func (b *Batch) fail(err error) {
	if b.err == nil && err != nil {
		b.err = err
	}
}

// maxPointDeletes is the number of records up to which deleteAll deletes one by
// one: each range deletion in the memtable slows all reads until it is flushed.
const maxPointDeletes = 256

// deleteAll deletes all records of a kind of one inode. set says that this
// very batch may have set some, which no reader sees yet.
func (b *Batch) deleteAll(kind byte, ino Ino, set bool) {
	lower := key1(b.key, kind, uint64(ino))
	b.key = lower
	upper := prefixEnd(lower)
	if set {
		b.fail(b.p.DeleteRange(lower, upper, nil))
		return
	}
	keys, err := b.db.keys(lower, upper, maxPointDeletes+1)
	if err != nil {
		b.fail(err)
		return
	}
	if len(keys) > maxPointDeletes {
		b.fail(b.p.DeleteRange(lower, upper, nil))
		return
	}
	for _, k := range keys {
		b.fail(b.p.Delete(k, nil))
	}
}
