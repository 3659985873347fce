package store_test

import (
	"testing"

	"cafs/store"
	"cafs/store/disk"
	"cafs/store/storetest"
)

func openDir(t *testing.T, fs disk.FS, opts store.Options) *store.Dir {
	t.Helper()
	opts.CreateIfMissing = true
	d, err := store.Open(fs, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func openOS(t *testing.T) disk.FS {
	t.Helper()
	fs, err := disk.OS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fs.Close() })
	return fs
}

func TestSuite(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) store.Store{
		"mem": func(t *testing.T) store.Store { return store.NewMem() },
		"dir": func(t *testing.T) store.Store { return openDir(t, openOS(t), store.Options{}) },
		"dir on mem": func(t *testing.T) store.Store {
			return openDir(t, disk.NewMem(), store.Options{})
		},
		"dir, buffered": func(t *testing.T) store.Store {
			return openDir(t, openOS(t), store.Options{Buffered: true})
		},
		"faultless wrapper": func(t *testing.T) store.Store {
			return openDir(t, disk.NewFault(openOS(t), func(disk.Op) error { return nil }), store.Options{})
		},
		"cache": func(t *testing.T) store.Store {
			return store.NewCache(openDir(t, openOS(t), store.Options{}), 1<<20)
		},
	} {
		t.Run(name, func(t *testing.T) { storetest.Test(t, open) })
	}
}
