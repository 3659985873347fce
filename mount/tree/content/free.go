package content

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"cafs/mount/tree/index"
)

// FreeSegments removes the segments that nothing refers to, neither in memory
// nor in the index as it is durably. One call at a time.
func (fs *Files) FreeSegments(ctx context.Context, db *index.DB) error {
	dead := fs.staging.idle()
	if len(dead) == 0 {
		return nil
	}
	live := make(map[uint64]int64)
	for s, err := range db.Segments() {
		if err != nil {
			return fmt.Errorf("content: list segments: %w", err)
		}
		live[s.ID] = s.Live
	}
	// The batches that dropped the last references must be durable first.
	if err := db.Sync(ctx); err != nil {
		return fmt.Errorf("content: free segments: %w", err)
	}
	b := db.NewBatch()
	defer b.Close()
	for _, s := range dead {
		if live[s.id] != 0 {
			continue
		}
		if err := fs.staging.remove(s); err != nil {
			return err
		}
		if _, known := live[s.id]; known {
			b.DeleteSegment(s.id)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	if err := b.Commit(); err != nil {
		return fmt.Errorf("content: free segments: %w", err)
	}
	return nil
}

// idle returns the segments that take no more records and that nothing refers
// to. The one with the highest number stays, so that no number is used twice.
func (st *staging) idle() []*segment {
	st.mu.Lock()
	last := st.next - 1
	st.mu.Unlock()
	var out []*segment
	for _, s := range st.list() {
		s.mu.Lock()
		sealed := s.sealed
		s.mu.Unlock()
		if sealed && s.id != last && s.refs.Load() == 0 && s.live.Load() == 0 {
			out = append(out, s)
		}
	}
	return out
}

// remove deletes a segment's file.
func (st *staging) remove(s *segment) error {
	s.mu.Lock()
	file := s.file
	s.file = nil
	s.mu.Unlock()
	if file != nil {
		// It is about to be deleted: what Close could report is of no interest.
		_ = file.Close()
	}
	if err := st.fs.Remove(segmentName(s.id)); err != nil && !isNotExist(err) {
		return fmt.Errorf("content: remove segment %d: %w", s.id, err)
	}
	st.mu.Lock()
	delete(st.segs, s.id)
	st.mu.Unlock()
	return nil
}

// Sparse returns the segments less than half of which is live. For each inode
// of SegmentInodes the tree calls Evacuate and publishes; then FreeSegments
// removes them.
func (fs *Files) Sparse() []uint64 {
	var out []uint64
	for _, s := range fs.staging.list() {
		s.mu.Lock()
		sealed, size := s.sealed, s.size
		s.mu.Unlock()
		if live := s.live.Load(); sealed && live > 0 && live < size/2 {
			out = append(out, s.id)
		}
	}
	slices.Sort(out)
	return out
}

// SegmentInodes lists the inodes that a segment holds bytes of, live or not.
// Records whose heads are damaged are passed over: their files keep their extents,
// and the segment stays.
func (fs *Files) SegmentInodes(ctx context.Context, seg uint64) ([]index.Ino, error) {
	s := fs.staging.get(seg)
	s.ref()
	defer s.unref()
	f, err := fs.staging.open(s)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("content: size of segment %d: %w", seg, err)
	}
	data := make([]byte, size)
	if err := readFull(f, data, 0); err != nil {
		return nil, fmt.Errorf("content: read segment %d: %w", seg, err)
	}
	magic := binary.LittleEndian.AppendUint32(nil, recordMagic)
	inos := make(map[index.Ino]bool)
	for at := 0; ctx.Err() == nil; {
		i := bytes.Index(data[at:], magic)
		if i < 0 {
			break
		}
		at += i
		if ino, n := headInode(data[at:]); n > 0 {
			inos[ino] = true
			at += n
		} else {
			at++
		}
	}
	out := make([]index.Ino, 0, len(inos))
	for ino := range inos {
		out = append(out, ino)
	}
	slices.Sort(out)
	return out, ctx.Err()
}

// headInode reads an inode number and the length of a record if b begins with
// an intact head.
func headInode(b []byte) (index.Ino, int) {
	le := binary.LittleEndian
	if len(b) < headFixed {
		return 0, 0
	}
	n := le.Uint32(b[4:])
	if n > maxRecord || headLen(int32(n)) > int64(len(b)) {
		return 0, 0
	}
	end := headLen(int32(n)) - 4
	if crc32.Checksum(b[:end], castagnoli) != le.Uint32(b[end:]) {
		return 0, 0
	}
	return index.Ino(le.Uint64(b[8:])), min(len(b), int(end)+4+int(n))
}

// Evacuate copies the file's bytes out of a segment; the next cut publishes that.
func (f *File) Evacuate(ctx context.Context, seg uint64) error {
	type move struct {
		src *source
		idx int64
		off int64
		old *place
	}
	var moves []move
	cs := f.fs.cfg.ChunkSize
	f.mu.RLock()
	seen := make(map[*source]bool)
	f.tab.from(0, func(c *chunk) bool {
		for _, g := range c.frags {
			if p := g.src.place; p != nil && p.seg.id == seg && !seen[g.src] {
				seen[g.src] = true
				p.seg.ref()
				moves = append(moves, move{g.src, c.idx, c.idx*cs + int64(g.off), p})
			}
		}
		return true
	})
	f.mu.RUnlock()
	var err error
	for _, m := range moves {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = f.move(m.src, m.idx, m.off, m.old)
		}
		m.old.seg.unref()
	}
	return err
}

// move copies a source's bytes to the bulk lane.
func (f *File) move(src *source, idx, off int64, old *place) error {
	b := getScratch(int(src.n))
	defer putScratch(b)
	// The front of a loaded source may be bytes of the record that no extent
	// shows; they are there all the same.
	if err := f.fs.staging.read(old, *b, 0); err != nil {
		return err
	}
	recs := []record{{ino: uint64(f.ino), off: off, data: *b}}
	if err := f.fs.staging.append(bulk, recs); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if src.gone || src.place != old || f.dead {
		recs[0].place.seg.unref()
		return nil
	}
	src.place = recs[0].place
	old.seg.unref()
	f.seq++
	if f.tab.get(idx) != nil {
		f.changed[idx] = f.seq
	}
	return nil
}
