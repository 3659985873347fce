// Package add imports files and directory trees: it reads them from the file
// system, has package unixfs encode them, and puts the blocks into a store.
//
// An [Importer] hashes and writes on all processors, small files side by side
// and the chunks of one large file side by side. Its memory does not grow with
// what is added. Blocks are put first and the store is synced once, by
// [Importer.Finish]: a root it made before is not durable until then.
package add
