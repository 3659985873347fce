package history

import (
	"bytes"
	"fmt"
	"math"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/codec/dagcbor"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/fluent/qp"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"
	"github.com/ipld/go-ipld-prime/node/basicnode"

	"cafs/mount/tree/index"
)

// The fields of an entry that not all have are in a map at its end, by one
// letter each. The letters are on disk.
const (
	keyAtime  = "a" // [seconds, nanoseconds], as the next two when they differ from Mtime
	keyBtime  = "b"
	keyCtime  = "c"
	keyData   = "d" // when it differs from Size
	keyHard   = "h"
	keyCid    = "l"
	keyNlink  = "n"
	keyRecord = "r"
	keySize   = "s"
	keyTarget = "t"
	keyRdev   = "v"
	keyXattrs = "x" // [[name, value or link], …]
	keyTsize  = "z"
)

func encode(n datamodel.Node) ([]byte, error) {
	var b bytes.Buffer
	if err := dagcbor.Encode(n, &b); err != nil {
		return nil, fmt.Errorf("history: encode: %w", err)
	}
	return b.Bytes(), nil
}

func decode(block []byte) (datamodel.Node, error) {
	nb := basicnode.Prototype.Any.NewBuilder()
	// A block has at most 2 MiB, which bounds what decoding it can allocate.
	if err := (dagcbor.DecodeOptions{AllowLinks: true}).Decode(nb, bytes.NewReader(block)); err != nil {
		return nil, fmt.Errorf("history: decode: %w: %v", ErrFormat, err)
	}
	return nb.Build(), nil
}

func link(c cid.Cid) datamodel.Link { return cidlink.Link{Cid: c} }

// assemble writes an entry as a list: [name, link id], or
// [name, kind, perm, uid, gid, seconds, nanoseconds, {more}].
func (e *Entry) assemble(la datamodel.ListAssembler) {
	qp.ListEntry(la, qp.Bytes([]byte(e.Name)))
	if e.Link != (LinkID{}) {
		qp.ListEntry(la, qp.Bytes(e.Link[:]))
		return
	}
	for _, v := range []int64{int64(e.Kind), int64(e.Perm), int64(e.Uid), int64(e.Gid), e.Mtime.Sec, int64(e.Mtime.Nsec)} {
		qp.ListEntry(la, qp.Int(v))
	}
	qp.ListEntry(la, qp.Map(-1, e.assembleMore))
}

func (e *Entry) assembleMore(ma datamodel.MapAssembler) {
	number := func(key string, v int64, unless int64) {
		if v != unless {
			qp.MapEntry(ma, key, qp.Int(v))
		}
	}
	stamp := func(key string, t index.Timespec) {
		if t != e.Mtime {
			qp.MapEntry(ma, key, qp.List(2, func(la datamodel.ListAssembler) {
				qp.ListEntry(la, qp.Int(t.Sec))
				qp.ListEntry(la, qp.Int(int64(t.Nsec)))
			}))
		}
	}
	to := func(key string, c cid.Cid) {
		if c.Defined() {
			qp.MapEntry(ma, key, qp.Link(link(c)))
		}
	}
	stamp(keyAtime, e.Atime)
	stamp(keyBtime, e.Btime)
	stamp(keyCtime, e.Ctime)
	number(keyData, e.Data, e.Size)
	number(keyHard, int64(e.Hard), 0)
	to(keyCid, e.Cid)
	number(keyNlink, int64(e.Nlink), 0)
	to(keyRecord, e.Record)
	number(keySize, e.Size, 0)
	if e.Target != "" {
		qp.MapEntry(ma, keyTarget, qp.Bytes([]byte(e.Target)))
	}
	number(keyRdev, int64(e.Rdev), 0)
	if len(e.Xattrs) > 0 {
		qp.MapEntry(ma, keyXattrs, qp.List(int64(len(e.Xattrs)), e.assembleXattrs))
	}
	number(keyTsize, int64(e.Tsize), 0)
}

func (e *Entry) assembleXattrs(la datamodel.ListAssembler) {
	for _, x := range e.Xattrs {
		qp.ListEntry(la, qp.List(2, func(la datamodel.ListAssembler) {
			qp.ListEntry(la, qp.Bytes([]byte(x.Name)))
			if x.Block.Defined() {
				qp.ListEntry(la, qp.Link(link(x.Block)))
			} else {
				qp.ListEntry(la, qp.Bytes(x.Value))
			}
		}))
	}
}

// reader takes values out of a node; after the first that is not there or not
// of its kind it is bad and gives zeros.
type reader struct{ bad bool }

func (r *reader) err() error {
	if r.bad {
		return fmt.Errorf("history: decode: %w", ErrFormat)
	}
	return nil
}

func (r *reader) at(n datamodel.Node, i int64) datamodel.Node {
	if n == nil || n.Kind() != datamodel.Kind_List {
		r.bad = true
		return nil
	}
	v, err := n.LookupByIndex(i)
	if err != nil {
		r.bad = true
		return nil
	}
	return v
}

// field returns nil, and no failure, for what is not there.
func (r *reader) field(n datamodel.Node, key string) datamodel.Node {
	if n == nil || n.Kind() != datamodel.Kind_Map {
		r.bad = true
		return nil
	}
	v, err := n.LookupByString(key)
	if err != nil {
		return nil
	}
	return v
}

func (r *reader) num(n datamodel.Node, limit int64) int64 {
	if n == nil || n.Kind() != datamodel.Kind_Int {
		r.bad = true
		return 0
	}
	v, err := n.AsInt()
	if err != nil || v > limit {
		r.bad = true
		return 0
	}
	return v
}

// count is num for what is not negative.
func (r *reader) count(n datamodel.Node, limit int64) int64 {
	v := r.num(n, limit)
	if v < 0 {
		r.bad = true
		return 0
	}
	return v
}

func (r *reader) bytes(n datamodel.Node) []byte {
	if n == nil || n.Kind() != datamodel.Kind_Bytes {
		r.bad = true
		return nil
	}
	b, err := n.AsBytes()
	if err != nil {
		r.bad = true
	}
	return b
}

func (r *reader) text(n datamodel.Node) string {
	if n == nil || n.Kind() != datamodel.Kind_String {
		r.bad = true
		return ""
	}
	s, err := n.AsString()
	if err != nil {
		r.bad = true
	}
	return s
}

func (r *reader) cid(n datamodel.Node) cid.Cid {
	if n == nil || n.Kind() != datamodel.Kind_Link {
		r.bad = true
		return cid.Undef
	}
	l, err := n.AsLink()
	cl, ok := l.(cidlink.Link)
	if err != nil || !ok {
		r.bad = true
		return cid.Undef
	}
	return cl.Cid
}

func (r *reader) time(n datamodel.Node) index.Timespec {
	return index.Timespec{Sec: r.num(r.at(n, 0), math.MaxInt64), Nsec: uint32(r.count(r.at(n, 1), 999_999_999))}
}

func (r *reader) entry(n datamodel.Node) Entry {
	e := Entry{Name: string(r.bytes(r.at(n, 0)))}
	if r.bad {
		return e
	}
	if n.Length() == 2 {
		if copy(e.Link[:], r.bytes(r.at(n, 1))) != len(e.Link) || e.Link == (LinkID{}) {
			r.bad = true
		}
		return e
	}
	e.Kind = index.Kind(r.count(r.at(n, 1), int64(index.BlockDev)))
	e.Perm = uint16(r.count(r.at(n, 2), 0o7777))
	e.Uid = uint32(r.count(r.at(n, 3), math.MaxUint32))
	e.Gid = uint32(r.count(r.at(n, 4), math.MaxUint32))
	e.Mtime = index.Timespec{Sec: r.num(r.at(n, 5), math.MaxInt64), Nsec: uint32(r.count(r.at(n, 6), 999_999_999))}
	e.Atime, e.Btime, e.Ctime = e.Mtime, e.Mtime, e.Mtime
	r.more(&e, r.at(n, 7))
	if e.Kind < index.File {
		r.bad = true
	}
	return e
}

func (r *reader) more(e *Entry, m datamodel.Node) {
	if r.bad || m.Kind() != datamodel.Kind_Map {
		r.bad = true
		return
	}
	if v := r.field(m, keySize); v != nil {
		e.Size = r.count(v, math.MaxInt64)
	}
	e.Data = e.Size
	for it := m.MapIterator(); !it.Done(); {
		k, v, err := it.Next()
		if err != nil {
			r.bad = true
			return
		}
		switch r.text(k) {
		case keyAtime:
			e.Atime = r.time(v)
		case keyBtime:
			e.Btime = r.time(v)
		case keyCtime:
			e.Ctime = r.time(v)
		case keyData:
			e.Data = r.count(v, math.MaxInt64)
		case keyHard:
			e.Hard = uint64(r.count(v, math.MaxInt64))
		case keyCid:
			e.Cid = r.cid(v)
		case keyNlink:
			e.Nlink = uint32(r.count(v, math.MaxUint32))
		case keyRecord:
			e.Record = r.cid(v)
		case keySize:
		case keyTarget:
			e.Target = string(r.bytes(v))
		case keyRdev:
			e.Rdev = uint32(r.count(v, math.MaxUint32))
		case keyXattrs:
			e.Xattrs = r.xattrs(v)
		case keyTsize:
			e.Tsize = uint64(r.count(v, math.MaxInt64))
		default:
			r.bad = true // a field without which the entry would not be restored as it was
		}
	}
}

func (r *reader) xattrs(n datamodel.Node) []Xattr {
	if n.Kind() != datamodel.Kind_List {
		r.bad = true
		return nil
	}
	var all []Xattr
	for i := range n.Length() {
		pair := r.at(n, i)
		x := Xattr{Name: string(r.bytes(r.at(pair, 0)))}
		if v := r.at(pair, 1); v != nil && v.Kind() == datamodel.Kind_Link {
			x.Block = r.cid(v)
		} else {
			x.Value = r.bytes(v)
		}
		all = append(all, x)
	}
	return all
}

// Encode stores a commit.
func (c *Commit) Encode(emit Emit) (cid.Cid, error) {
	n, err := qp.BuildMap(basicnode.Prototype.Any, -1, func(ma datamodel.MapAssembler) {
		qp.MapEntry(ma, "version", qp.Int(Version))
		qp.MapEntry(ma, "root", qp.Link(link(c.Root.Cid)))
		qp.MapEntry(ma, "attributes", qp.List(-1, c.Root.assemble))
		if c.Links.Defined() {
			qp.MapEntry(ma, "links", qp.Link(link(c.Links)))
		}
		qp.MapEntry(ma, "parents", qp.List(-1, func(la datamodel.ListAssembler) {
			for _, p := range c.Parents {
				qp.ListEntry(la, qp.Link(link(p)))
			}
		}))
		qp.MapEntry(ma, "time", qp.List(2, func(la datamodel.ListAssembler) {
			qp.ListEntry(la, qp.Int(c.Time.Unix()))
			qp.ListEntry(la, qp.Int(int64(c.Time.Nanosecond())))
		}))
		qp.MapEntry(ma, "reason", qp.String(c.Reason))
		if c.Message != "" {
			qp.MapEntry(ma, "message", qp.Bytes([]byte(c.Message)))
		}
	})
	if err != nil {
		return cid.Undef, fmt.Errorf("history: commit: %w", err)
	}
	data, err := encode(n)
	if err != nil {
		return cid.Undef, err
	}
	return block(cid.DagCBOR, data, emit)
}

// Decode reads a commit. Errors: ErrFormat, ErrVersion.
func Decode(data []byte) (Commit, error) {
	n, err := decode(data)
	if err != nil {
		return Commit{}, err
	}
	r := &reader{}
	if v := r.num(r.field(n, "version"), math.MaxInt64); !r.bad && v != Version {
		return Commit{}, fmt.Errorf("history: commit of version %d: %w", v, ErrVersion)
	}
	c := Commit{Root: r.entry(r.field(n, "attributes"))}
	if l := r.field(n, "links"); l != nil {
		c.Links = r.cid(l)
	}
	parents := r.field(n, "parents")
	for i := int64(0); !r.bad && parents != nil && i < parents.Length(); i++ {
		c.Parents = append(c.Parents, r.cid(r.at(parents, i)))
	}
	t := r.time(r.field(n, "time"))
	c.Time = time.Unix(t.Sec, int64(t.Nsec))
	c.Reason = r.text(r.field(n, "reason"))
	if m := r.field(n, "message"); m != nil {
		c.Message = string(r.bytes(m))
	}
	if r.cid(r.field(n, "root")) != c.Root.Cid || c.Root.Kind != index.Dir {
		r.bad = true
	}
	return c, r.err()
}
