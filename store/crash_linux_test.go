package store_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"cafs/store"
	"cafs/store/disk"
	"cafs/store/disk/disktest"

	"github.com/ipfs/go-cid"
)

// TestShutdown cuts the power of real file systems.
func TestShutdown(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some time")
	}
	s := seed(t)
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			for run := range max(1, *runsFlag/5) {
				shutdown(t, fstype, rand.New(rand.NewPCG(s, uint64(run))))
			}
		})
	}
}

// shutdown cuts the power while a store is written to, and looks at what is
// left.
func shutdown(t *testing.T, fstype string, rng *rand.Rand) {
	image := disktest.NewImage(t, t.TempDir(), fstype, "512M")
	fs, err := disk.OS(image.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(image.Dir + "/lost+found"); err != nil {
		t.Fatal(err)
	}
	d, err := store.Open(fs, store.Options{CreateIfMissing: true, Buffered: rng.IntN(2) == 0})
	if err != nil {
		t.Fatal(err)
	}
	if rng.IntN(2) == 0 {
		d.Shrink()
	}
	w := &workload{d: d, rng: rng, durable: map[cid.Cid]bool{}}
	ended := make(chan error, 1)
	go func() { ended <- w.run(1 << 30) }()
	time.Sleep(time.Duration(20+rng.IntN(600)) * time.Millisecond) // when the power goes
	how := []disktest.Loss{disktest.LogLost, disktest.LogWritten}[rng.IntN(2)]
	must := w.acked
	if fstype == "btrfs" { // is not told of what happens below it while a flush of its is under way
		before := w.acked()
		must = func() []cid.Cid { return before }
	}
	image.PowerOff(t, how)
	w.stop.Store(true) // what waits in memory may be put for a while yet
	<-ended
	d.Close()
	fs.Close()
	image.Unmount(t)
	image.Mount(t)
	again, err := disk.OS(image.Dir)
	if err != nil {
		t.Fatal(err)
	}
	survived(t, again, must())
	again.Close()
	image.Unmount(t)
	t.Logf("%s: %d blocks acknowledged, %d in logs, loss %d", fstype, len(must()), w.logged.Load(), how)
}
