package content

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"cafs/store/disk"
)

// A segment is a file of staging, written once from front to end. It begins
// with segmentMagic; then records follow, each a head and its data, at any
// offset. Ranges whose write failed, and the end, may hold anything: records
// are found by the extents that name them, never by walking.
//
//	head: magic u32 | data length u32 | inode u64 | offset in the file u64 |
//	      segment u64 | CRC32C of each 4 KiB of data, u32 each | CRC32C of all before, u32
//
// All integers are little-endian. An extent has the head's offset and its last
// field, so an intact record at the wrong place is not taken for the right one.
const (
	segmentMagic = "cafs staging v1\n"
	recordMagic  = 0x5a1dca75
	headFixed    = 32
	pageSize     = 4096
	maxRecord    = 4 << 20 // bytes of data
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func headLen(n int32) int64 { return headFixed + 4*pagesOf(n) + 4 }

func pagesOf(n int32) int64 { return (int64(n) + pageSize - 1) / pageSize }

// place says where in staging a record is.
type place struct {
	seg *segment
	pos int64 // of the head
	n   int32 // bytes of data; of a loaded place perhaps fewer than the record has
	crc uint32
	// loaded: it comes from the index, so the record's length is not known.
	loaded bool
	// ticket is the number of the sync that makes it durable; 0: it is.
	ticket uint64
	// head is what was read of the head, if it was.
	head atomic.Pointer[head]
}

// head is the checked head of a record.
type head struct {
	n    int32    // bytes of data
	sums []uint32 // CRCs of its pages
}

// segment is one file. Its mutex is taken last.
type segment struct {
	id   uint64
	refs atomic.Int64 // sources, cuts and reads that need the file
	live atomic.Int64 // bytes that committed batches refer to

	mu      sync.Mutex
	file    disk.File // nil: not opened yet
	size    int64     // where the next record goes
	sealed  bool      // no records are added any more
	named   bool      // its name is durable
	started uint64    // syncs begun
	synced  uint64    // the last sync that succeeded
	syncing chan struct{}
	err     error // a write-out failed: what was not durable then is lost
}

func (s *segment) ref()   { s.refs.Add(1) }
func (s *segment) unref() { s.refs.Add(-1) }

func segmentName(id uint64) string { return fmt.Sprintf("%016x.seg", id) }

// encodeHead appends the head of a record of data to dst.
func encodeHead(dst []byte, seg, ino uint64, off int64, data []byte) ([]byte, uint32) {
	start := len(dst)
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, recordMagic)
	dst = le.AppendUint32(dst, uint32(len(data)))
	dst = le.AppendUint64(dst, ino)
	dst = le.AppendUint64(dst, uint64(off))
	dst = le.AppendUint64(dst, seg)
	for len(data) > 0 {
		n := min(pageSize, len(data))
		dst = le.AppendUint32(dst, crc32.Checksum(data[:n], castagnoli))
		data = data[n:]
	}
	crc := crc32.Checksum(dst[start:], castagnoli)
	return le.AppendUint32(dst, crc), crc
}

// decodeHead checks the head at the beginning of b, which p names. Its length
// is 0 when b is too short for it.
func decodeHead(b []byte, p *place) (*head, int64, error) {
	le := binary.LittleEndian
	bad := fmt.Errorf("%w: head of the record at %d of segment %d", ErrDamaged, p.pos, p.seg.id)
	if len(b) < headFixed || le.Uint32(b) != recordMagic {
		return nil, 0, bad
	}
	n := le.Uint32(b[4:])
	if n > maxRecord || int32(n) < p.n || (int32(n) != p.n && !p.loaded) || le.Uint64(b[24:]) != p.seg.id {
		return nil, 0, bad
	}
	length := headLen(int32(n))
	if int64(len(b)) < length {
		return nil, length, nil
	}
	body := b[:length-4]
	if crc := le.Uint32(b[length-4:]); crc != p.crc || crc32.Checksum(body, castagnoli) != crc {
		return nil, 0, bad
	}
	h := &head{n: int32(n), sums: make([]uint32, pagesOf(int32(n)))}
	for i := range h.sums {
		h.sums[i] = le.Uint32(body[headFixed+4*i:])
	}
	return h, length, nil
}

// open returns the segment's file.
func (st *staging) open(s *segment) (disk.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		return s.file, nil
	}
	f, err := st.fs.OpenFile(segmentName(s.id), os.O_RDONLY, 0)
	if err != nil {
		// A missing segment must not look like a missing name.
		return nil, fmt.Errorf("%w: segment %d: %v", ErrDamaged, s.id, err)
	}
	var magic [len(segmentMagic)]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil || string(magic[:]) != segmentMagic {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("%w: segment %d does not begin as one of this version (%v)", ErrDamaged, s.id, err)
	}
	s.file = f
	return f, nil
}

// read fills p with data of a record from off on. Every page it takes bytes of is
// checked.
func (st *staging) read(pl *place, p []byte, off int64) error {
	f, err := st.open(pl.seg)
	if err != nil {
		return err
	}
	h := pl.head.Load()
	if h == nil && !pl.loaded && pl.n <= pageSize {
		return readSmall(f, pl, p, off)
	}
	if h == nil {
		if h, err = readHead(f, pl); err != nil {
			return err
		}
		pl.head.Store(h)
	}
	return readPages(f, pl, h, p, off)
}

// readSmall reads a record of one page together with its head, which need not
// be kept in memory then.
func readSmall(f disk.File, pl *place, p []byte, off int64) error {
	length := headLen(pl.n)
	sb := getScratch(int(length) + int(pl.n))
	defer putScratch(sb)
	b := *sb
	if err := readFull(f, b, pl.pos); err != nil {
		return pl.damaged(err)
	}
	h, _, err := decodeHead(b[:length], pl)
	if err != nil {
		return err
	}
	data := b[length:]
	if crc32.Checksum(data, castagnoli) != h.sums[0] || off+int64(len(p)) > int64(len(data)) {
		return pl.damaged(nil)
	}
	copy(p, data[off:])
	return nil
}

func readHead(f disk.File, pl *place) (*head, error) {
	length := headLen(pl.n)
	for range 2 { // again if the record is longer than the extent
		b := make([]byte, length)
		if err := readFull(f, b, pl.pos); err != nil {
			return nil, pl.damaged(err)
		}
		h, want, err := decodeHead(b, pl)
		if h != nil || err != nil {
			return h, err
		}
		length = want
	}
	return nil, pl.damaged(nil)
}

// readPages fills p from the pages of a record, checking each against its sum.
func readPages(f disk.File, pl *place, h *head, p []byte, off int64) error {
	end := off + int64(len(p))
	if off < 0 || end > int64(h.n) || off == end {
		return pl.damaged(nil)
	}
	from, to := off/pageSize*pageSize, min(int64(h.n), (end+pageSize-1)/pageSize*pageSize)
	b := p
	if from != off || to != end {
		sb := getScratch(int(to - from))
		defer putScratch(sb)
		b = *sb
	}
	if err := readFull(f, b, pl.pos+headLen(h.n)+from); err != nil {
		return pl.damaged(err)
	}
	for i, rest := from/pageSize, b; len(rest) > 0; i++ {
		n := min(pageSize, len(rest))
		if crc32.Checksum(rest[:n], castagnoli) != h.sums[i] {
			return pl.damaged(nil)
		}
		rest = rest[n:]
	}
	if from != off || to != end {
		copy(p, b[off-from:])
	}
	return nil
}

// damaged is the error of a record that cannot be read.
func (p *place) damaged(cause error) error {
	if cause == nil {
		return fmt.Errorf("%w: record at %d of segment %d", ErrDamaged, p.pos, p.seg.id)
	}
	// Not wrapped: a missing file must not look like a missing name.
	return fmt.Errorf("%w: record at %d of segment %d: %v", ErrDamaged, p.pos, p.seg.id, cause)
}

func readFull(f disk.File, p []byte, off int64) error {
	n, err := f.ReadAt(p, off)
	if n < len(p) && err == nil {
		err = io.ErrUnexpectedEOF
	}
	if n == len(p) {
		err = nil
	}
	return err
}

// ticket numbers the sync that will cover what is written by now.
func (s *segment) ticket() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started + 1
}

// sync returns when the sync of the given number is done: one for all who wait. Cancelling
// ctx abandons the wait only.
func (s *segment) sync(ctx context.Context, fs disk.FS, ticket uint64) error {
	for {
		s.mu.Lock()
		if s.synced >= ticket {
			s.mu.Unlock()
			return nil
		}
		if s.err != nil {
			err := s.err
			s.mu.Unlock()
			return err
		}
		if wait := s.syncing; wait != nil {
			s.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		done := make(chan struct{})
		s.syncing = done
		s.started++
		number, file, named := s.started, s.file, s.named
		s.mu.Unlock()
		err := file.Sync()
		if err == nil && !named {
			err = fs.SyncDir()
		}
		s.mu.Lock()
		if err != nil {
			s.err = fmt.Errorf("content: sync segment %d: %w", s.id, err)
			s.sealed = true
		} else {
			s.synced, s.named = number, true
		}
		s.syncing = nil
		s.mu.Unlock()
		close(done)
	}
}
