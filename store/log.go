package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"cafs/store/disk"

	mh "github.com/multiformats/go-multihash"
)

// A round of small blocks, put by several who wait for it, becomes durable by
// one flush of the device instead of two of the file system: it is appended to
// a log, a file in the staging folder that was filled with zeros before. Its
// blocks stay pending, and get files and names of their own later, many at a
// time; after that the log is written from its beginning again. Nothing but an
// unclean end leaves a log behind, and Open takes the blocks out of it.
//
// A log is a row of rounds. Each begins at a multiple of logAlign, so that no
// page that counts is ever written again:
//
//	8 bytes  logMagic
//	8 bytes  generation: every use of a file from its beginning has another one
//	4 bytes  length of the records
//	4 bytes  CRC-32C of generation, length and records
//	records  2 bytes length of the multihash, 4 bytes length of the block, both
//
// Numbers are big-endian. The row ends where no round is, or one of another
// generation, or one whose checksum is wrong: nothing after that was ever
// acknowledged. To put a block again that was taken from here does no harm, so
// it does not matter when a log is removed, or how durably.

const (
	logMagic    = "cafslog1"
	logMagicAny = "cafslog" // of any version
	logHead     = len(logMagic) + 8 + 4 + 4
	recordHead  = 2 + 4
	logAlign    = 4096
	logPrefix   = "log-"

	// logFiles of logSize bytes are there at most. When all are full, rounds go
	// the other way until the blocks of one have names.
	logSize  = 4 << 20
	logFiles = 4
	// logFew blocks are made durable one by one: that costs as much as naming
	// them later would.
	logFew = fewFlushes
	// logAfter rounds that a log would have served, it is made: its making is
	// not for whoever syncs a few times and ends.
	logAfter = 8
	// logPlenty is the free space beyond the reserve below which none is made.
	logPlenty = 256 << 20
	// logLimit is the longest file that is read as a log.
	logLimit = 16 * logSize
)

// logs is used by one goroutine at a time, but for the counts of live blocks.
type logs struct {
	root, dir disk.FS // the store, and its staging folder
	size      int64   // of a file
	after     int     // rounds until one is made
	spare     int64   // bytes that have to be free for one
	next      int     // number of the next file
	gen       uint64  // the last one
	files     []*logFile
	buf       []byte
}

type logFile struct {
	file disk.File
	live atomic.Int64 // its blocks that have no durable name yet
	gen  uint64
	end  int64
}

// init takes the names of the logs that are there, in their order.
func (l *logs) init(root, dir disk.FS, old []string) {
	l.root, l.dir = root, dir
	l.size, l.after, l.spare = logSize, logAfter, logPlenty
	if len(old) > 0 {
		n, _ := logNumber(old[len(old)-1])
		l.next = n + 1
	}
}

func logName(n int) string { return logPrefix + strconv.Itoa(n) }

// logNumber is the number in a log's name; ok is false for any other name.
func logNumber(name string) (n int, ok bool) {
	text, ok := strings.CutPrefix(name, logPrefix)
	n, err := strconv.Atoi(text)
	return n, ok && err == nil && n >= 0
}

// close leaves the files where they are.
func (l *logs) close() {
	for _, f := range l.files {
		f.file.Close() // all that counts was synced
	}
	l.files = nil
}

// logRound makes a batch durable in a log; with nil and no error it has to be
// committed the other way. A failed flush poisons the store.
func (d *Dir) logRound(b *batch) (*logFile, error) {
	if err := d.poisoned(); err != nil {
		return nil, err
	}
	l := &d.logs
	if len(b.entries) <= logFew {
		return nil, nil
	}
	for _, e := range b.entries {
		if !e.inMemory() || e.written {
			return nil, nil
		}
	}
	if l.after > 0 {
		l.after--
		return nil, nil
	}
	l.encode(b.entries)
	f, err := l.place(int64(len(l.buf)), d.room.spareBytes)
	if f == nil {
		if err != nil {
			err = d.poison(fmt.Errorf("make a log: %w", err))
		}
		return nil, err
	}
	binary.BigEndian.PutUint64(l.buf[len(logMagic):], f.gen)
	sumRound(l.buf)
	if _, err := f.file.WriteAt(l.buf, f.end); noSpace(err) {
		f.end = l.size // full, until its blocks have names
		return nil, nil
	} else if err != nil {
		return nil, d.poison(fmt.Errorf("write log: %w", err))
	}
	if err := f.file.Sync(); err != nil {
		return nil, d.poison(fmt.Errorf("flush log: %w", err))
	}
	f.end += int64(len(l.buf))
	f.live.Add(int64(len(b.entries)))
	d.stats.barriers.Add(1)
	return f, nil
}

// encode writes a round to buf, but for its generation and checksum.
func (l *logs) encode(entries []*entry) {
	b := append(l.buf[:0], logMagic...)
	b = append(b, make([]byte, logHead-len(logMagic))...)
	for _, e := range entries {
		b = binary.BigEndian.AppendUint16(b, uint16(len(e.key)))
		b = binary.BigEndian.AppendUint32(b, uint32(len(e.data)))
		b = append(append(b, e.key...), e.data...)
	}
	binary.BigEndian.PutUint32(b[logHead-8:], uint32(len(b)-logHead))
	l.buf = append(b, make([]byte, -len(b)&(logAlign-1))...)
}

// roundSum is the checksum of a round with the given head.
func roundSum(head, records []byte) uint32 {
	sum := crc32.Checksum(head[len(logMagic):logHead-4], castagnoli)
	return crc32.Update(sum, castagnoli, records)
}

func sumRound(b []byte) {
	n := binary.BigEndian.Uint32(b[logHead-8:])
	binary.BigEndian.PutUint32(b[logHead-4:], roundSum(b, b[logHead:][:n]))
}

// place is a log with room for n bytes, or nil.
func (l *logs) place(n, reserve int64) (*logFile, error) {
	for _, f := range l.files {
		if f.end > 0 && f.live.Load() == 0 {
			l.begin(f)
		}
		if f.end+n <= l.size {
			return f, nil
		}
	}
	if len(l.files) == logFiles || n > l.size {
		return nil, nil
	}
	if u, err := l.root.Usage(); err != nil || u.Avail < reserve+l.spare {
		return nil, nil
	}
	f, err := l.make()
	if noSpace(err) {
		return nil, nil
	}
	return f, err
}

// begin makes all of f room.
func (l *logs) begin(f *logFile) {
	l.gen++
	f.gen, f.end = l.gen, 0
}

var zeros [256 << 10]byte

// make makes a log, durably, and all of its bytes written: then a flush has
// neither a size to make durable nor, as after fallocate(2), that blocks were
// written to.
func (l *logs) make() (*logFile, error) {
	name := logName(l.next)
	l.next++
	file, err := l.dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, filePerm)
	if err != nil {
		return nil, err
	}
	for off := int64(0); off < l.size && err == nil; off += int64(len(zeros)) {
		_, err = file.WriteAt(zeros[:min(int64(len(zeros)), l.size-off)], off)
	}
	if err == nil {
		err = file.Sync()
		if err == nil {
			err = l.dir.SyncDir()
		}
		if err == nil {
			err = l.root.SyncDir() // of the staging folder
		}
		if noSpace(err) {
			err = fmt.Errorf("%v", err) // a flush that failed is no lack of room
		}
	}
	if err != nil {
		file.Close()
		l.dir.Remove(name) // best effort; swept at the next open
		return nil, err
	}
	f := &logFile{file: file}
	l.begin(f)
	l.files = append(l.files, f)
	return f, nil
}

// logged is a block in a log.
type logged struct {
	key  string
	data []byte
}

// readLog reads the blocks of the log at name in dir. What is there may be torn,
// but not of a version that this program does not know.
func readLog(dir disk.FS, name string) ([]logged, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, logLimit))
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	b = b[:n]
	if s := string(b[:min(n, len(logMagic))]); strings.HasPrefix(s, logMagicAny) && s != logMagic {
		return nil, fmt.Errorf("%s is a log of another version (%q): %w", name, s, ErrLayout)
	}
	var list []logged
	for round := range rounds(b) {
		for len(round) > 0 {
			if len(round) < recordHead {
				return nil, errRecords
			}
			keyLen := int64(binary.BigEndian.Uint16(round))
			end := recordHead + keyLen + int64(binary.BigEndian.Uint32(round[2:]))
			if end > int64(len(round)) {
				return nil, errRecords
			}
			list = append(list, logged{key: string(round[recordHead:][:keyLen]), data: round[recordHead+keyLen : end]})
			round = round[end:]
		}
	}
	return list, nil
}

var errRecords = errors.New("a log has a sound checksum and no sound records")

// rounds yields the records of each round.
func rounds(b []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		var gen uint64
		for first := true; len(b) >= logHead && string(b[:len(logMagic)]) == logMagic; first = false {
			n := int64(binary.BigEndian.Uint32(b[logHead-8:]))
			g := binary.BigEndian.Uint64(b[len(logMagic):])
			if first {
				gen = g
			}
			if g != gen || n > int64(len(b)-logHead) {
				return
			}
			records := b[logHead:][:n]
			if roundSum(b, records) != binary.BigEndian.Uint32(b[logHead-4:]) || !yield(records) {
				return
			}
			b = b[min(int64(len(b)), (int64(logHead)+n+logAlign-1)&^(logAlign-1)):]
		}
	}
}

// replay takes the blocks out of the logs of a run that did not end, gives them
// names and removes the logs. A disk without room for that is no error: the
// blocks stay pending, and the logs where they are.
func (d *Dir) replay(names []string) error {
	source := &logFile{}
	for _, name := range names {
		list, err := readLog(d.logs.dir, name)
		if err != nil {
			return err
		}
		kept := make([]*entry, len(list))
		err = parallel(len(list), syncers, func(i int) error {
			kept[i] = d.fromLog(list[i])
			return nil
		})
		if err != nil {
			return err
		}
		for _, e := range kept {
			if e != nil && d.table.add(e) {
				d.room.wrote(e.size, -1)
				source.live.Add(1)
				d.queue.keep(e, source)
			}
		}
	}
	if n := source.live.Load(); n > 0 {
		d.log.Info("blocks taken from the log of a run that did not end", "blocks", n)
	}
	if err := d.settle(context.Background()); err != nil {
		if noSpace(err) && d.poisoned() == nil {
			d.log.Warn("no room for the blocks of a log; they stay there", "err", err)
			return nil
		}
		return err
	}
	for _, name := range names {
		if err := d.logs.dir.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// fromLog is the block as one that waits for its name, or nil when it has one,
// and the right bytes under it, or was never what its multihash says.
func (d *Dir) fromLog(b logged) *entry {
	if len(b.key) > maxHash || len(b.data) >= largeBlock {
		return nil
	}
	if err := Verify(mh.Multihash(b.key), b.data); err != nil {
		d.log.Error("a block in a log is not what it is called", "err", err)
		return nil
	}
	if d.rehash(b.key) == nil {
		return nil
	}
	return &entry{key: b.key, name: blockName(b.key), size: int64(len(b.data)), data: b.data}
}
