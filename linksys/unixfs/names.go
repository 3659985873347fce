package unixfs

import (
	"fmt"
	"iter"
	"strings"
)

// MaxName is the longest name of a directory entry, in bytes: that of Linux.
const MaxName = 255

// ValidName tells whether a name can be a directory entry: 1 to 255 bytes, not
// "." or "..", and without a slash or a zero byte. It need not be UTF-8; names
// on Linux are bytes. Errors: ErrName.
func ValidName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: empty", ErrName)
	case len(name) > MaxName:
		return fmt.Errorf("%w: %d bytes", ErrName, len(name))
	case name == "." || name == "..":
		return fmt.Errorf("%w: %q", ErrName, name)
	case strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("%w: %q holds a slash or a zero byte", ErrName, name)
	}
	return nil
}

// Entries lists the directory entries in a Dir or HAMT node, without its
// children's, in stored order. An entry whose name is invalid or came before is
// given together with an error matching ErrName, and the listing goes on: who
// imports stops at it, who browses leaves it out.
func (n *Node) Entries() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		width := 0
		switch n.Type {
		case Dir:
		case HAMT:
			width = slotWidth(n.Fanout)
		default:
			yield(Entry{}, ErrNotDir)
			return
		}
		var seen uniqueNames
		for _, l := range n.Links {
			if width > 0 && len(l.Name) == width {
				continue
			}
			e := Entry{Name: l.Name[width:], Cid: l.Cid, Tsize: l.Tsize}
			err := ValidName(e.Name)
			if err == nil && !seen.add(e.Name) {
				err = fmt.Errorf("%w: %q twice", ErrName, e.Name)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// Shards lists the children of a HAMT node that are HAMT nodes themselves.
func (n *Node) Shards() iter.Seq[Link] {
	return func(yield func(Link) bool) {
		if n.Type != HAMT {
			return
		}
		width := slotWidth(n.Fanout)
		for _, l := range n.Links {
			if len(l.Name) == width && !yield(l) {
				return
			}
		}
	}
}

// uniqueNames finds duplicates. Links are sorted by name in every directory
// made by the rules, and then comparing neighbours is enough; the set is only
// built once the order is broken.
type uniqueNames struct {
	sorted []string
	set    map[string]struct{}
}

func (u *uniqueNames) add(name string) bool {
	if u.set == nil {
		if len(u.sorted) == 0 || u.sorted[len(u.sorted)-1] < name {
			u.sorted = append(u.sorted, name)
			return true
		}
		u.set = make(map[string]struct{}, len(u.sorted)+1)
		for _, s := range u.sorted {
			u.set[s] = struct{}{}
		}
	}
	if _, ok := u.set[name]; ok {
		return false
	}
	u.set[name] = struct{}{}
	return true
}
