package index

import (
	"io"

	"github.com/cockroachdb/pebble/v2"
)

// mergerName is on disk.
const mergerName = "cafs.sum.1"

// sumMerger makes a merged record the sum of its operands.
func sumMerger() *pebble.Merger {
	return &pebble.Merger{
		Name: mergerName,
		Merge: func(_, value []byte) (pebble.ValueMerger, error) {
			s := new(sum)
			return s, s.MergeNewer(value)
		},
	}
}

type sum int64

// MergeNewer implements pebble.ValueMerger.
func (s *sum) MergeNewer(value []byte) error {
	n, err := decodeSigned(value)
	*s += sum(n)
	return err
}

// MergeOlder implements pebble.ValueMerger; addition has no order.
func (s *sum) MergeOlder(value []byte) error { return s.MergeNewer(value) }

// Finish implements pebble.ValueMerger.
func (s *sum) Finish(bool) ([]byte, io.Closer, error) {
	return appendVarint(nil, int64(*s)), nil, nil
}
