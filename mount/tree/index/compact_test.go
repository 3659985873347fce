package index_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cafs/mount/tree/index"
	"cafs/store/disk"
)

// TestOpenAheadOfMerging: opening after a crash waits for no merge of tables,
// although what the log had makes one due; that is begun afterwards.
func TestOpenAheadOfMerging(t *testing.T) {
	mem := disk.NewMem()
	db := open(t, mem)
	write := func() {
		if err := commit(db, func(b *index.Batch) {
			for i := range 100 {
				b.SetRef(fmt.Sprint("name", i), make([]byte, 100))
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	write()
	left := mem.Crash(1, 1)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	var tables atomic.Int32 // made since the crash
	merging, release := make(chan string, 1), make(chan struct{})
	fs := disk.NewFault(left, func(op disk.Op) error {
		if op.Kind != disk.OpCreate || !strings.HasSuffix(op.Name, ".sst") || tables.Add(1) == 1 { // the first is of what was in the log
			return nil
		}
		select {
		case merging <- op.Name:
		default:
		}
		<-release // a merge takes for ever
		return nil
	})
	opened := make(chan *index.DB, 1)
	go func() { opened <- open(t, fs) }()
	select {
	case db = <-opened:
	case <-time.After(30 * time.Second):
		close(release)
		t.Fatal("opening waits for a merge")
	}
	select {
	case <-merging: // and the index is usable meanwhile
	case <-time.After(30 * time.Second):
		t.Error("nothing is merged after opening")
	}
	if v, err := db.Ref("name7"); len(v) != 100 {
		t.Errorf("%d bytes, %v", len(v), err)
	}
	write()
	close(release)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
