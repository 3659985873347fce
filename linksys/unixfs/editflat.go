package unixfs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// flatEdit makes changes, sorted by name, to the links of a directory of one
// node as they are read; what stays is copied as it stands.
type flatEdit struct {
	changes []Change
	links   []byte // encoded result
	tsize   uint64
	size    dirMeasure
	last    []byte // name of the link read last
}

// errUnsorted: links out of order, which only a foreign directory can have.
var errUnsorted = errors.New("links out of order")

// flat edits a directory of one node, or builds one of the changes alone.
func (d *dirEditor) flat(block []byte, changes []Change) (Root, error) {
	f, err := d.editFlat(block, changes)
	if errors.Is(err, errUnsorted) {
		if block, err = sortLinks(block); err == nil {
			f, err = d.editFlat(block, changes)
		}
	}
	if err != nil {
		return Root{}, err
	}
	if !f.size.sharded() {
		return d.p.flatNode(f.links, f.tsize, f.size, Stat{}, d.emit)
	}
	entries := make([]Entry, 0, f.size.entries) // it grew too large
	_, err = scanFields(f.links, func(l rawLink) error {
		e, err := l.decode()
		entries = append(entries, e)
		return err
	})
	if err != nil {
		return Root{}, err
	}
	return d.p.dir(d.ctx, entries, Stat{}, d.emit)
}

func (d *dirEditor) editFlat(block []byte, changes []Change) (*flatEdit, error) {
	f := &flatEdit{changes: changes, size: d.p.measure(Stat{})}
	f.links = make([]byte, 0, len(block)+128*min(len(changes), 4096))
	if _, err := scanNode(block, f.link); err != nil {
		return nil, err
	}
	for len(f.changes) > 0 {
		f.change()
	}
	return f, nil
}

// link takes the next link of the directory.
func (f *flatEdit) link(l rawLink) error {
	if f.last != nil {
		switch order := bytes.Compare(f.last, l.name); {
		case order > 0:
			return errUnsorted
		case order == 0:
			return fmt.Errorf("%w: %q twice", ErrName, l.name)
		}
	}
	f.last = l.name
	for len(f.changes) > 0 && f.changes[0].Name <= string(l.name) {
		replaced := f.changes[0].Name == string(l.name)
		f.change()
		if replaced {
			return nil
		}
	}
	if !validCid(l.cid) {
		return malformed("CID of %q", l.name)
	}
	if len(l.all) == linkLen(len(l.cid), len(l.name), l.tsize) {
		f.links = append(f.links, l.all...)
	} else { // some other writer's form
		e, err := l.decode()
		if err != nil {
			return err
		}
		f.links = appendLink(f.links, e, "")
	}
	f.tsize += clampTsize(l.tsize)
	f.size.count(len(l.cid), len(l.name), l.tsize, 1)
	return nil
}

// change takes the next change.
func (f *flatEdit) change() {
	c := &f.changes[0]
	f.changes = f.changes[1:]
	if c.Set {
		f.links = appendLink(f.links, c.Entry, "")
		f.tsize += clampTsize(c.Entry.Tsize)
		f.size.add(c.Entry)
	}
}

// sortLinks returns the links of a node, and nothing else, sorted by name.
func sortLinks(block []byte) ([]byte, error) {
	var links []rawLink
	if _, err := scanNode(block, func(l rawLink) error {
		links = append(links, l)
		return nil
	}); err != nil {
		return nil, err
	}
	slices.SortStableFunc(links, func(a, b rawLink) int { return bytes.Compare(a.name, b.name) })
	sorted := make([]byte, 0, len(block))
	for _, l := range links {
		sorted = append(sorted, l.all...)
	}
	return sorted, nil
}
