package content_test

import (
	"errors"
	"syscall"
	"testing"

	"cafs/linksys/unixfs"
	"cafs/store/disk"
)

// behind is a block store of whose blocks so many bytes are in memory only.
type behind struct {
	blockStore
	waiting int64
}

func (b *behind) Waiting() int64 { return b.waiting }

// TestBacklog: what the block store has yet to write is not room for others, in
// a write and in statfs.
func TestBacklog(t *testing.T) {
	d := disk.NewMem()
	d.SetCapacity(32 << 20)
	for _, waiting := range []int64{0, 30 << 20} {
		r, err := newRepo(t, d, nil, unixfs.V1_2025, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.files.Close(); err != nil {
			t.Fatal(err)
		}
		before, err := d.Usage()
		if err != nil {
			t.Fatal(err)
		}
		r.blocks = &behind{r.blocks, waiting}
		if err := r.open(); err != nil {
			t.Fatal(err)
		}
		err = r.files.Room(4 << 20)
		if full := waiting > 0; full != errors.Is(err, syscall.ENOSPC) || !full && err != nil {
			t.Errorf("%d bytes wait: %v", waiting, err)
		}
		u, err := r.files.Usage()
		if err != nil || u.Avail > before.Avail-waiting {
			t.Errorf("%d bytes wait, and of %d %d can be written: %v", waiting, before.Avail, u.Avail, err)
		}
		r.close()
	}
}
