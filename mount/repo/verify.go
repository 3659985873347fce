package repo

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"cafs/mount/verify"
	"cafs/store/disk"
)

// Names in the repository folder.
const (
	// QuarantineName is the folder that damaged blocks are moved to.
	QuarantineName = "quarantine"
	// VerifyName is the file that says how far an interrupted verification read.
	VerifyName = "verify"
)

// VerifyArg says what to check; see verify.Options.
type VerifyArg struct {
	Data   bool `json:"data,omitempty"`
	Resume bool `json:"resume,omitempty"`
	Repair bool `json:"repair,omitempty"`
}

// VerifyEvent is one of them.
type VerifyEvent struct {
	Found    *verify.Finding `json:"found,omitempty"`
	Progress *verify.Report  `json:"progress,omitempty"`
}

// verify checks the repository.
func (h *History) verify(ctx context.Context, a VerifyArg, progress func(any) error) (r verify.Report, err error) {
	o := verify.Options{Tree: h.Tree, DB: h.Repo.DB, Store: h.Repo.Store, Pins: h.pinned, Data: a.Data, Resume: a.Resume,
		State:    filepath.Join(h.Repo.Path, VerifyName),
		Found:    func(f verify.Finding) error { return progress(VerifyEvent{Found: &f}) },
		Progress: func(r verify.Report) { _ = progress(VerifyEvent{Progress: &r}) }, // who listens may be gone; that ends ctx
	}
	if a.Repair {
		q, err := h.quarantine()
		if err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, q.Close()) }()
		o.Quarantine = q
	}
	return verify.Run(ctx, o)
}

// quarantine opens the folder for damaged blocks, making it when there is none.
func (h *History) quarantine() (disk.FS, error) {
	path := filepath.Join(h.Repo.Path, QuarantineName)
	err := os.Mkdir(path, 0o700)
	if err == nil {
		err = syncDir(h.Repo.Path)
	} else if errors.Is(err, os.ErrExist) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("repo: quarantine: %w", err)
	}
	return disk.OS(path)
}

func (h *History) pinned() iter.Seq2[verify.Pin, error] {
	return func(yield func(verify.Pin, error) bool) {
		for root, err := range h.Repo.Roots() {
			if !yield(verify.Pin{Cid: root.Cid, Name: root.Name}, err) || err != nil {
				return
			}
		}
	}
}
