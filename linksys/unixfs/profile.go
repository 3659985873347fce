package unixfs

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	mh "github.com/multiformats/go-multihash"
)

// Profile is the set of choices that, together with the bytes, decide a CID.
// The zero value is not usable: start from [V1_2025], [V0_2015] or
// [ParseProfile] and change fields. A Profile is comparable and its methods are
// safe for concurrent use.
type Profile struct {
	CidVersion int    // 0 or 1; 0 needs sha2-256, and raw leaves keep version 1 all the same
	Hash       uint64 // multihash code: sha2-256, sha2-512, blake2b-256 or blake3
	RawLeaves  bool   // leaves are bare bytes; else dag-pb nodes with framing

	// ChunkSize is the length of a leaf's content in bytes (the last may be
	// shorter), when Chunker is empty.
	ChunkSize int64
	// Chunker, if not empty, cuts by content: "buzhash", "rabin",
	// "rabin-AVG" or "rabin-MIN-AVG-MAX". Files so cut cannot be edited.
	Chunker  string
	MaxLinks int // children of one interior node of a file, at least 2

	Fanout   int      // slots of a HAMT node: a power of two, 8 to 1024
	DirSize  SizeMode // what is compared with DirLimit
	DirLimit int      // a directory larger than this many bytes is sharded; 0: only one too long for a block
	DirLinks int      // a directory with more entries than this is sharded; 0: no such limit
}

// maxLinks keeps an interior node well below MaxBlock, whatever the hash.
const maxLinks = 8192

// SizeMode says how the size of a directory is measured against DirLimit.
type SizeMode uint8

const (
	// SizeBlock: the exact length of the directory as a single dag-pb block.
	SizeBlock SizeMode = iota
	// SizeLinks: the lengths of names and binary CIDs alone, as Kubo did up to
	// version 0.39.
	SizeLinks
	// SizeNone: only DirLinks counts (DirLimit must not be 0 even so).
	SizeNone
)

var (
	// V1_2025 is the profile unixfs-v1-2025 of IPIP-499.
	V1_2025 = Profile{
		CidVersion: 1, Hash: mh.SHA2_256, RawLeaves: true, ChunkSize: 1 << 20, MaxLinks: 1024,
		Fanout: 256, DirSize: SizeBlock, DirLimit: 256 << 10,
	}
	// V0_2015 is the profile unixfs-v0-2015 of IPIP-499.
	V0_2015 = Profile{
		CidVersion: 0, Hash: mh.SHA2_256, RawLeaves: false, ChunkSize: 256 << 10, MaxLinks: 174,
		Fanout: 256, DirSize: SizeLinks, DirLimit: 256 << 10,
	}
)

var profiles = map[string]Profile{"unixfs-v1-2025": V1_2025, "unixfs-v0-2015": V0_2015}

var sizeModes = []string{SizeBlock: "block", SizeLinks: "links", SizeNone: "none"}

var hashes = map[string]uint64{
	"sha2-256": mh.SHA2_256, "sha2-512": mh.SHA2_512, "blake2b-256": mh.BLAKE2B_MIN + 31, "blake3": mh.BLAKE3,
}

// settings are the names of single settings, in the order String writes them.
var settings = []struct {
	name string
	get  func(p *Profile) string
	set  func(p *Profile, v string) error
}{
	{"cid-version", func(p *Profile) string { return strconv.Itoa(p.CidVersion) },
		func(p *Profile, v string) error { return setInt(&p.CidVersion, v) }},
	{"hash", func(p *Profile) string { return hashName(p.Hash) },
		func(p *Profile, v string) error { return setNamed(&p.Hash, hashes, v) }},
	{"raw-leaves", func(p *Profile) string { return strconv.FormatBool(p.RawLeaves) },
		func(p *Profile, v string) (err error) { p.RawLeaves, err = strconv.ParseBool(v); return err }},
	{"chunker", chunkerName, setChunker},
	{"max-links", func(p *Profile) string { return strconv.Itoa(p.MaxLinks) },
		func(p *Profile, v string) error { return setInt(&p.MaxLinks, v) }},
	{"fanout", func(p *Profile) string { return strconv.Itoa(p.Fanout) },
		func(p *Profile, v string) error { return setInt(&p.Fanout, v) }},
	{"dir-size", func(p *Profile) string { return sizeModes[p.DirSize] },
		func(p *Profile, v string) error {
			i := slices.Index(sizeModes, v)
			p.DirSize = SizeMode(max(i, 0))
			return wantTrue(i >= 0)
		}},
	{"dir-limit", func(p *Profile) string { return strconv.Itoa(p.DirLimit) },
		func(p *Profile, v string) error { return setInt(&p.DirLimit, v) }},
	{"dir-links", func(p *Profile) string { return strconv.Itoa(p.DirLinks) },
		func(p *Profile, v string) error { return setInt(&p.DirLinks, v) }},
}

// ParseProfile reads a profile's name, followed by any number of single
// settings: "unixfs-v1-2025,chunker=size-262144,hash=blake3". The settings are
// cid-version, hash, raw-leaves, chunker (size-N and those of
// [Profile.Chunker]), max-links, fanout, dir-size (block, links, none),
// dir-limit and dir-links. A CID version of 0 becomes 1 when the hash is not
// sha2-256, as in Kubo. Errors: ErrProfile.
func ParseProfile(s string) (Profile, error) {
	name, rest, _ := strings.Cut(s, ",")
	p, ok := profiles[name]
	if !ok {
		return Profile{}, fmt.Errorf("%w: no profile %q (there are %s)", ErrProfile, name, strings.Join(slices.Sorted(maps.Keys(profiles)), ", "))
	}
	for rest != "" {
		var setting string
		setting, rest, _ = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(setting, "=")
		if err := p.set(key, value); err != nil {
			return Profile{}, err
		}
	}
	if p.Hash != mh.SHA2_256 && p.CidVersion == 0 {
		p.CidVersion = 1
	}
	return p, p.Validate()
}

func (p *Profile) set(key, value string) error {
	for _, s := range settings {
		if s.name != key {
			continue
		}
		if err := s.set(p, value); err != nil {
			return fmt.Errorf("%w: %s=%q: %v", ErrProfile, key, value, err)
		}
		return nil
	}
	return fmt.Errorf("%w: no setting %q", ErrProfile, key)
}

// String is what [ParseProfile] reads: the nearest named profile and what
// differs from it.
func (p Profile) String() string {
	var best string
	for _, name := range slices.Sorted(maps.Keys(profiles)) {
		s := name
		for _, f := range settings {
			q := profiles[name]
			if f.get(&p) != f.get(&q) {
				s += "," + f.name + "=" + f.get(&p)
			}
		}
		if best == "" || len(s) < len(best) {
			best = s
		}
	}
	return best
}

// Validate tells whether the settings go together. Whatever takes a profile
// calls it first. Errors: ErrProfile.
func (p Profile) Validate() error {
	bad := ""
	switch {
	case p.CidVersion != 0 && p.CidVersion != 1:
		bad = "CID version must be 0 or 1"
	case p.CidVersion == 0 && p.Hash != mh.SHA2_256:
		bad = "CID version 0 needs sha2-256"
	case p.Hash != mh.SHA2_256 && hashName(p.Hash) == "":
		bad = "hash must be sha2-256, sha2-512, blake2b-256 or blake3"
	case p.ChunkSize < 1 || p.ChunkSize > maxChunk:
		bad = fmt.Sprintf("chunk size must be 1 to %d bytes", maxChunk)
	case p.MaxLinks < 2 || p.MaxLinks > maxLinks:
		bad = fmt.Sprintf("links per node must be 2 to %d", maxLinks)
	case p.Fanout < minFanout || p.Fanout > maxFanout || p.Fanout&(p.Fanout-1) != 0:
		bad = fmt.Sprintf("fan-out must be a power of two, %d to %d", minFanout, maxFanout)
	case int(p.DirSize) >= len(sizeModes):
		bad = "no such size mode"
	case p.DirLimit < 0 || p.DirLimit > maxChunk:
		bad = fmt.Sprintf("directory limit must be 0 to %d bytes", maxChunk)
	case p.DirLinks < 0:
		bad = "limit of directory links must not be negative"
	case p.Chunker != "":
		return checkChunker(p.Chunker)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrProfile, bad)
}

func hashName(code uint64) string {
	for name, c := range hashes {
		if c == code {
			return name
		}
	}
	return ""
}

func chunkerName(p *Profile) string {
	if p.Chunker != "" {
		return p.Chunker
	}
	return "size-" + strconv.FormatInt(p.ChunkSize, 10)
}

func setChunker(p *Profile, v string) error {
	n, ok := strings.CutPrefix(v, "size-")
	if !ok {
		p.Chunker = v
		return wantTrue(v != "")
	}
	size, err := strconv.ParseInt(n, 10, 64)
	p.Chunker, p.ChunkSize = "", size
	return err
}

func setInt(dst *int, v string) (err error) {
	*dst, err = strconv.Atoi(v)
	return err
}

func setNamed(dst *uint64, names map[string]uint64, v string) error {
	code, ok := names[v]
	*dst = code
	return wantTrue(ok)
}

func wantTrue(ok bool) error {
	if !ok {
		return fmt.Errorf("unknown value")
	}
	return nil
}
