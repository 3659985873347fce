// Package car reads and writes CARs, the files in which blocks travel: version 1
// as Kubo's "dag export" and trustless gateways send it, and version 2 with an
// index.
//
// A version 1 is a header (dag-cbor of roots and version) and sections (varint
// length, CID, bytes); a version 2 wraps one, with its length before and an
// index of multihashes after it. [Export] writes the blocks a traversal selects
// in the order of the traversal, so that a reader can verify each as it comes:
// it has seen the link before the block. [Import] believes nothing: it hashes
// every block before it is stored, whatever the index says, and returns roots
// only when all that they lead to is there and durable.
package car
