package verify

import (
	"context"
	"errors"
	"syscall"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
	"cafs/store"
)

// repair moves damaged blocks aside, and puts a copy in the place of every bad
// one that there is a copy of. dirs are directories of the tree that can be
// made anew from the index.
func (v *run) repair(ctx context.Context, dirs []index.Ino) error {
	for _, f := range v.bad {
		if err := v.replace(ctx, f); err != nil {
			return err
		}
	}
	if err := v.remake(ctx, dirs); err != nil {
		return err
	}
	if err := v.Store.Sync(ctx); err != nil {
		return err
	}
	for _, f := range v.bad {
		if there, err := v.Store.Has(ctx, f.Cid); err != nil {
			return err
		} else if there {
			f.Outcome = Repaired
		}
	}
	return nil
}

// replace moves a damaged block aside. One that was moved there before and is
// sound, since it was the disk that erred, takes its place.
func (v *run) replace(ctx context.Context, f *Finding) error {
	good, copyErr := store.ReadCopy(v.Quarantine, f.Cid)
	f.Outcome = Lost
	if f.Problem != Missing {
		moved, err := v.Store.Quarantine(ctx, f.Cid.Hash(), v.Quarantine)
		if err != nil {
			return err
		}
		if moved {
			f.Outcome = Quarantined
		}
	}
	if copyErr != nil {
		return nil
	}
	return store.PutVerified(ctx, v.Store, f.Cid, good)
}

// remake makes the blocks of directories anew.
func (v *run) remake(ctx context.Context, dirs []index.Ino) error {
	given := 0
	for _, ino := range dirs {
		switch err := v.Tree.Readdress(ino); {
		case err == nil:
			given++
		case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.ESTALE):
		default:
			return err
		}
	}
	if given == 0 {
		return nil
	}
	// A file below that cannot be read is not reason enough to leave the rest.
	if _, err := v.Tree.Seal(ctx, tree.RootIno); err != nil && problemOf(err) == Unreadable {
		return err
	}
	if _, err := v.Tree.Peek(ctx); err != nil && problemOf(err) == Unreadable {
		return err
	}
	return nil
}
