package unixfs

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

var (
	// ErrMalformed: a block is no well-formed UnixFS node, or contradicts
	// itself or its parent (sizes that do not add up, a wrong bitfield).
	ErrMalformed = errors.New("malformed UnixFS node")
	// ErrForeign: the base of an edit was laid out by other settings than the
	// profile's. Build it anew from its content.
	ErrForeign = errors.New("laid out by another profile")
	// ErrName: a directory entry's name is one no file system can have, or is
	// there twice. See [ValidName].
	ErrName = errors.New("invalid entry name")
	// ErrNotDir: a directory was asked for and the node is none.
	ErrNotDir = errors.New("not a UnixFS directory")
	// ErrProfile: settings that do not exist or do not go together.
	ErrProfile = errors.New("invalid UnixFS profile")
)

// MaxBlock is the longest block, in bytes, that is encoded or decoded: the
// limit of Bitswap and of the block store.
const MaxBlock = 2 << 20

// maxChunk leaves room in a block for the framing of a dag-pb leaf. Kubo has
// the same limit.
const maxChunk = MaxBlock - 256

// Block is encoded bytes and the CID that names them.
type Block struct {
	Cid  cid.Cid
	Data []byte
}

// Emit takes a new block, children before parents. Data is only valid during
// the call. An error ends the operation, which returns it. Storing a block
// twice must be harmless: equal blocks may be emitted more than once.
type Emit func(Block) error

// Load returns the bytes of a block, already checked against the CID; they are
// only read. Identity CIDs are Load's business too. Its errors are passed on
// wrapped, so that a missing block keeps the store's own error.
type Load func(ctx context.Context, c cid.Cid) ([]byte, error)

// Root is the top of a DAG.
type Root struct {
	Cid cid.Cid
	// Size is the number of content bytes of a file. For a directory it is the
	// size that decides about sharding (see [Profile.DirSize]), or 0 when that
	// is not known.
	Size uint64
	// Tsize is the sum of the lengths of all blocks of the DAG, each counted as
	// often as it is linked: what a link to this root carries.
	Tsize uint64
}

// cid names data, which codec describes.
func (p Profile) cid(codec uint64, data []byte) (cid.Cid, error) {
	hash, err := p.sum(data)
	if err != nil {
		return cid.Undef, err
	}
	if p.CidVersion == 0 && codec == cid.DagProtobuf {
		return cid.NewCidV0(hash), nil
	}
	return cid.NewCidV1(codec, hash), nil
}

func (p Profile) sum(data []byte) (mh.Multihash, error) {
	switch p.Hash {
	case mh.SHA2_256: // directly: the generic path costs allocations
		d := sha256.Sum256(data)
		return append([]byte{mh.SHA2_256, sha256.Size}, d[:]...), nil
	case mh.SHA2_512:
		d := sha512.Sum512(data)
		return append([]byte{mh.SHA2_512, sha512.Size}, d[:]...), nil
	}
	hash, err := mh.Sum(data, p.Hash, -1)
	if err != nil {
		return nil, fmt.Errorf("unixfs: hash: %w", err)
	}
	return hash, nil
}

// block hashes data as codec and emits it.
func (p Profile) block(codec uint64, data []byte, emit Emit) (cid.Cid, error) {
	c, err := p.cid(codec, data)
	if err != nil {
		return cid.Undef, err
	}
	return c, emit(Block{Cid: c, Data: data})
}
