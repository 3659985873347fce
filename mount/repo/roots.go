package repo

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/ipfs/go-cid"
)

// rootPrefix is where the index keeps roots: the CID behind it, and as value
// the rest of a Root as JSON.
const rootPrefix = "root/"

// Root is content that was brought in from outside the tree and is to be kept
// and listed.
type Root struct {
	Cid  cid.Cid   `json:"-"`
	Name string    `json:"name"` // what it was called where it came from
	Time time.Time `json:"time"`
}

// AddRoot remembers roots, all or none, durably when it returns. The blocks
// must be durable already, and where collections run, safe from one that does:
// noted by a Sweep that lasts until then, or kept by History.Pin.
func (r *Repo) AddRoot(ctx context.Context, roots ...Root) error {
	b := r.DB.NewBatch()
	defer b.Close()
	for _, root := range roots {
		value, err := json.Marshal(root)
		if err != nil {
			return err
		}
		b.SetRef(rootPrefix+root.Cid.String(), value)
	}
	if err := b.CommitSync(ctx); err != nil {
		return fmt.Errorf("repo: roots: %w", err)
	}
	return nil
}

// Roots lists the roots, ordered by the text of their CIDs.
func (r *Repo) Roots() iter.Seq2[Root, error] {
	return func(yield func(Root, error) bool) {
		for ref, err := range r.DB.Refs(rootPrefix) {
			var root Root
			if err == nil {
				err = json.Unmarshal(ref.Value, &root)
			}
			if err == nil {
				root.Cid, err = cid.Decode(strings.TrimPrefix(ref.Name, rootPrefix))
			}
			if err != nil {
				yield(Root{}, fmt.Errorf("repo: roots: %w", err))
				return
			}
			if !yield(root, nil) {
				return
			}
		}
	}
}
