package index

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// RangeDeletes counts the range deletions in a batch.
func (b *Batch) RangeDeletes() (n int) {
	for r := b.p.Reader(); ; {
		kind, _, _, ok, err := r.Next()
		if !ok || err != nil {
			return n
		}
		if kind == pebble.InternalKeyKindRangeDelete {
			n++
		}
	}
}

// Compact moves everything from memory into tables of the lowest level.
func (db *DB) Compact() error {
	if err := db.p.Flush(); err != nil {
		return err
	}
	return db.p.Compact(context.Background(), []byte{0}, []byte{0xff}, false)
}

// Flush begins to write the memtable into a table and waits for that or for a
// failure of the index.
func (db *DB) Flush() error {
	done, err := db.p.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-done:
	case <-db.guard.failed:
	}
	return nil
}

// Dump lists all keys and values in hexadecimal.
func (db *DB) Dump() ([]string, error) {
	it, err := db.iter(nil, nil)
	if err != nil {
		return nil, err
	}
	var lines []string
	for ok := it.First(); ok; ok = it.Next() {
		lines = append(lines, fmt.Sprintf("%c %x = %x", it.Key()[0], it.Key()[1:], it.Value()))
	}
	return lines, it.Close()
}

// SetVersion writes the format version.
func (db *DB) SetVersion(v uint64) error {
	return db.p.Set([]byte{keyVersion}, appendUvarint(nil, v), pebble.Sync)
}

// Stall holds commits back as a busy engine would.
func (db *DB) Stall(on bool) { db.stall.set(on) }
