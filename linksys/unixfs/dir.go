package unixfs

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Entry is a link in a directory, under its own name.
type Entry = Link

// Change sets or removes one name of a directory.
type Change struct {
	Name  string
	Set   bool  // false: remove; a name that is not there is no error
	Entry Entry // if Set; its own Name may be left empty
}

// Dir builds a directory. See [Profile.BuildDir].
func (b Builder) Dir(ctx context.Context, entries iter.Seq2[Entry, error], emit Emit) (Root, error) {
	if err := b.Profile.Validate(); err != nil {
		return Root{}, fmt.Errorf("unixfs: build directory: %w", err)
	}
	var all []Entry
	for e, err := range entries {
		if err == nil {
			err = validEntry(e)
		}
		if err != nil {
			return Root{}, fmt.Errorf("unixfs: build directory: %w", err)
		}
		all = append(all, e)
	}
	root, err := b.Profile.dir(ctx, all, b.Stat, emit)
	if err != nil {
		return Root{}, fmt.Errorf("unixfs: build directory: %w", err)
	}
	return root, nil
}

// dir builds the directory of these entries, which it reorders.
func (p Profile) dir(ctx context.Context, entries []Entry, stat Stat, emit Emit) (Root, error) {
	d := p.measure(stat)
	for i := range entries {
		d.add(entries[i])
	}
	if d.sharded() {
		root, err := p.shards(ctx, entries, stat, emit)
		root.Size = uint64(d.size())
		return root, err
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(entries); i++ {
		if entries[i].Name == entries[i-1].Name {
			return Root{}, fmt.Errorf("%w: %q twice", ErrName, entries[i].Name)
		}
	}
	n, tsize := 0, uint64(0)
	for _, e := range entries {
		n += linkLen(e.Cid.ByteLen(), len(e.Name), e.Tsize)
		tsize += clampTsize(e.Tsize)
	}
	links := make([]byte, 0, n)
	for _, e := range entries {
		links = appendLink(links, e, "")
	}
	return p.flatNode(links, tsize, d, stat, emit)
}

func validEntry(e Entry) error {
	if !e.Cid.Defined() {
		return fmt.Errorf("%w: %q without a CID", ErrMalformed, e.Name)
	}
	return ValidName(e.Name)
}

// flatNode emits a directory of one node from its encoded links.
func (p Profile) flatNode(links []byte, tsize uint64, d dirMeasure, stat Stat, emit Emit) (Root, error) {
	data := encodeNode(links, appendStat(appendField(nil, tagType, uint64(Dir)), stat))
	c, err := p.block(codecDagPB, data, emit)
	return Root{Cid: c, Size: uint64(d.size()), Tsize: tsize + uint64(len(data))}, err
}

// dirMeasure is what decides whether a directory is sharded.
type dirMeasure struct {
	p       *Profile
	block   int // bytes of the block, as one node
	links   int // bytes of names and CIDs
	entries int
}

func (p *Profile) measure(stat Stat) dirMeasure {
	n := len(appendStat(appendField(nil, tagType, uint64(Dir)), stat))
	return dirMeasure{p: p, block: 1 + varintLen(uint64(n)) + n}
}

// size is that which the profile goes by, in bytes.
func (d *dirMeasure) size() int {
	switch d.p.DirSize {
	case SizeBlock:
		return d.block
	case SizeLinks:
		return d.links
	}
	return 0
}

func (d *dirMeasure) add(e Entry)    { d.count(e.Cid.ByteLen(), len(e.Name), e.Tsize, 1) }
func (d *dirMeasure) remove(e Entry) { d.count(e.Cid.ByteLen(), len(e.Name), e.Tsize, -1) }

func (d *dirMeasure) count(cidLen, nameLen int, tsize uint64, sign int) {
	d.entries += sign
	d.block += sign * linkLen(cidLen, nameLen, tsize)
	d.links += sign * (cidLen + nameLen)
}

// sharded: the limit itself still fits. An empty directory is never sharded, one
// that is too long for a block always.
func (d *dirMeasure) sharded() bool {
	switch {
	case d.block > MaxBlock:
		return true
	case d.p.DirLimit == 0 || d.entries == 0:
		return false
	case d.p.DirLinks > 0 && d.entries > d.p.DirLinks:
		return true
	}
	return d.p.DirSize != SizeNone && d.size() > d.p.DirLimit
}
