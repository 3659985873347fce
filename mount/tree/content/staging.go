package content

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"cafs/mount/tree/index"
	"cafs/store/disk"
)

const (
	segmentSize = 64 << 20 // bytes; a segment ends with the record that passes it
	maxWrite    = 4 << 20  // bytes written at once
)

// lane separates what is synced for one caller from bulk that is not: an fsync
// of a few bytes must not write out what was spilled for others.
type lane int

const (
	small lane = iota // staged for a sync that somebody waits for
	bulk              // spilled, or much at once
	lanes
)

// staging is the folder of segments. Appends of one lane are placed under its
// mutex and written outside of it.
type staging struct {
	fs      disk.FS
	segSize int64

	mu   sync.Mutex // taken after a lane's
	segs map[uint64]*segment
	next uint64 // number of the next segment; never goes back

	lanes [lanes]struct {
		mu  sync.Mutex
		seg *segment // nil: none open
	}
	written atomic.Int64 // bytes ever appended
}

// record is bytes to be staged. After append place has one reference.
type record struct {
	ino   uint64
	off   int64 // in the file
	data  []byte
	place *place
}

func openStaging(fs disk.FS, segs []index.Segment) (*staging, error) {
	st := &staging{fs: fs, segSize: segmentSize, segs: make(map[uint64]*segment), next: 1}
	names, err := fs.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("content: list staging: %w", err)
	}
	for _, d := range names {
		if id, ok := segmentID(d.Name); ok {
			info, err := fs.Stat(d.Name)
			if err != nil {
				return nil, fmt.Errorf("content: list staging: %w", err)
			}
			st.add(id).size = info.Size
		}
	}
	for _, s := range segs {
		st.add(s.ID).live.Store(s.Live)
	}
	return st, nil
}

// segmentID reads the number out of a segment's file name.
func segmentID(name string) (uint64, bool) {
	hex, ok := strings.CutSuffix(name, ".seg")
	if !ok || len(hex) != 16 {
		return 0, false
	}
	id, err := strconv.ParseUint(hex, 16, 64)
	return id, err == nil && id > 0 && id < 1<<63
}

// add makes a segment known that an earlier process wrote.
func (st *staging) add(id uint64) *segment {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.segs[id]
	if s == nil {
		s = &segment{id: id, sealed: true, named: true}
		st.segs[id] = s
		st.next = max(st.next, id+1)
	}
	return s
}

// create starts a segment.
func (st *staging) create() (*segment, error) {
	st.mu.Lock()
	id := st.next
	st.next++
	st.mu.Unlock()
	f, err := st.fs.OpenFile(segmentName(id), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("content: create segment %d: %w", id, err)
	}
	if _, err := f.WriteAt([]byte(segmentMagic), 0); err != nil {
		_ = f.Close() // the error of the write is the one to tell
		_ = st.fs.Remove(segmentName(id))
		return nil, fmt.Errorf("content: write segment %d: %w", id, err)
	}
	s := &segment{id: id, file: f, size: int64(len(segmentMagic))}
	st.mu.Lock()
	st.segs[id] = s
	st.mu.Unlock()
	return s, nil
}

// append writes records, not durably, and sets their places. On an error none may be used.
func (st *staging) append(l lane, recs []record) error {
	for rest := recs; len(rest) > 0; {
		n, total := 0, int64(0)
		for n < len(rest) && (n == 0 || total+recordLen(rest[n]) <= maxWrite) {
			total += recordLen(rest[n])
			n++
		}
		if err := st.appendSome(l, rest[:n], total); err != nil {
			for _, r := range recs[:len(recs)-len(rest)] {
				r.place.seg.unref()
			}
			return err
		}
		rest = rest[n:]
	}
	return nil
}

func recordLen(r record) int64 { return headLen(int32(len(r.data))) + int64(len(r.data)) }

// appendSome writes records of total bytes in one go.
func (st *staging) appendSome(l lane, recs []record, total int64) error {
	s, pos, err := st.reserve(l, total)
	if err != nil {
		return err
	}
	defer s.unref()
	b := getScratch(int(total))
	defer putScratch(b)
	buf := (*b)[:0]
	for i := range recs {
		r := &recs[i]
		p := &place{seg: s, pos: pos + int64(len(buf)), n: int32(len(r.data))}
		buf, p.crc = encodeHead(buf, s.id, r.ino, r.off, r.data)
		buf = append(buf, r.data...)
		r.place = p
	}
	if _, err = s.file.WriteAt(buf, pos); err != nil {
		st.retire(l, s, nil)
	} else if l == bulk {
		if err = s.file.WriteOut(pos, total); err != nil {
			// The kernel reports a failed write-out once, to whoever asks first:
			// it may be that of earlier records.
			st.retire(l, s, err)
		}
	}
	if err != nil {
		return fmt.Errorf("content: write segment %d: %w", s.id, err)
	}
	st.written.Add(total)
	ticket := s.ticket()
	for i := range recs {
		recs[i].place.ticket = ticket
		s.ref()
	}
	return nil
}

// reserve finds room for n bytes in the lane's segment, which it refers to.
func (st *staging) reserve(l lane, n int64) (*segment, int64, error) {
	ln := &st.lanes[l]
	ln.mu.Lock()
	defer ln.mu.Unlock()
	for {
		if s := ln.seg; s != nil {
			s.mu.Lock()
			if !s.sealed && (s.size+n <= st.segSize || s.size == int64(len(segmentMagic))) {
				pos := s.size
				s.size += n
				s.ref()
				s.mu.Unlock()
				return s, pos, nil
			}
			s.sealed = true
			s.mu.Unlock()
		}
		s, err := st.create()
		if err != nil {
			return nil, 0, err
		}
		ln.seg = s
	}
}

// retire makes the lane go on in a new segment: a write to this one failed. lost is
// not nil when earlier writes may have failed, too.
func (st *staging) retire(l lane, s *segment, lost error) {
	st.lanes[l].mu.Lock()
	defer st.lanes[l].mu.Unlock()
	s.mu.Lock()
	s.sealed = true
	if lost != nil && s.err == nil {
		s.err = fmt.Errorf("content: write out segment %d: %w", s.id, lost)
	}
	s.mu.Unlock()
	if st.lanes[l].seg == s {
		st.lanes[l].seg = nil
	}
}

// list returns the segments known now.
func (st *staging) list() []*segment {
	st.mu.Lock()
	defer st.mu.Unlock()
	l := make([]*segment, 0, len(st.segs))
	for _, s := range st.segs {
		l = append(l, s)
	}
	return l
}

// get returns a segment that the index refers to.
func (st *staging) get(id uint64) *segment { return st.add(id) }

// addLive counts bytes that committed batches refer to.
func (st *staging) addLive(deltas map[uint64]int64) {
	for id, d := range deltas {
		st.get(id).live.Add(d)
	}
}

func (st *staging) close() error {
	var errs []error
	for _, s := range st.list() {
		s.mu.Lock()
		if s.file != nil {
			errs = append(errs, s.file.Close())
			s.file = nil
		}
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

func isEOF(err error) bool      { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
func isNotExist(err error) bool { return errors.Is(err, iofs.ErrNotExist) }

// scratch are buffers for putting records and chunks together.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// getScratch returns n bytes of any content.
func getScratch(n int) *[]byte {
	b := scratch.Get().(*[]byte)
	if cap(*b) < n {
		*b = make([]byte, n)
	}
	*b = (*b)[:n]
	return b
}

func putScratch(b *[]byte) { scratch.Put(b) }
