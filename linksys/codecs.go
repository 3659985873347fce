package linksys

import (
	"bytes"
	"fmt"
	"io"

	"github.com/ipfs/go-cid"
	dagpb "github.com/ipld/go-codec-dagpb"
	"github.com/ipld/go-ipld-prime/codec/cbor"
	"github.com/ipld/go-ipld-prime/codec/dagcbor"
	"github.com/ipld/go-ipld-prime/codec/dagjson"
	"github.com/ipld/go-ipld-prime/codec/json"
	"github.com/ipld/go-ipld-prime/codec/raw"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/linking"
	"github.com/ipld/go-ipld-prime/multicodec"
)

// Codes of codecs that go-cid has no (current) name for, from the multicodec table.
const (
	codeCBOR    = 0x51
	codeJSON    = 0x0200
	codeDagJSON = 0x0129
)

func registerCodecs(r *multicodec.Registry) {
	r.RegisterDecoder(cid.Raw, raw.Decode)
	r.RegisterEncoder(cid.Raw, raw.Encode)
	r.RegisterDecoder(cid.DagProtobuf, dagpb.Decode)
	r.RegisterEncoder(cid.DagProtobuf, dagpb.Encode)
	r.RegisterDecoder(cid.DagCBOR, dagcbor.Decode)
	r.RegisterEncoder(cid.DagCBOR, dagcbor.Encode)
	r.RegisterDecoder(codeDagJSON, dagjson.Decode)
	r.RegisterEncoder(codeDagJSON, dagjson.Encode)
	r.RegisterDecoder(codeCBOR, cbor.Decode)
	r.RegisterEncoder(codeCBOR, cbor.Encode)
	r.RegisterDecoder(codeJSON, json.Decode)
	r.RegisterEncoder(codeJSON, json.Encode)
}

// Supported tells whether blocks of this codec can be decoded; others can only
// be read as bytes.
func Supported(codec uint64) bool {
	_, err := codecs.LookupDecoder(codec)
	return err == nil
}

// writeOpener collects what an encoder writes and puts it under the CID the
// LinkSystem computed from those bytes.
func (s *System) writeOpener(lc linking.LinkContext) (io.Writer, linking.BlockWriteCommitter, error) {
	var buf bytes.Buffer
	return &buf, func(l datamodel.Link) error {
		c, err := linkCid(l)
		if err != nil {
			return err
		}
		if _, ok, err := inline(c); ok {
			return err
		}
		if err := s.blocks.Put(contextOf(lc), c, buf.Bytes()); err != nil {
			return fmt.Errorf("linksys: put %s: %w", c, err)
		}
		return nil
	}, nil
}
