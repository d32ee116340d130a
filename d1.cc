#include "h.h"
// kToken + kChunked, chunk no multiple of the block: a hit that ends where a chunk begins copies nothing of a side
int main(){
  auto k=H::cfg(8,40,{{LayerKind::kChunked,3}});k.reuse=Reuse::kToken;H h(k);
  V text(16);std::iota(text.begin(),text.end(),100);
  // X: ids come late, so block 0 is cached without its window's block
  auto x=h.open({});h.feed(x,16,text,false);MUST(h.c.SetTokens(x,text));
  // Y: shares 6 tokens, then its own
  V y={100,101,102,103,104,105,1,2,3};
  auto ys=h.open(y);std::printf("Y hit %ld\n",(long)h.feed(ys,1,y));
  h.rows("Y",ys,1);
  h.feed(ys,2,y);  // block 0 full: cached
  h.rows("Y",ys,1);
  // Z: shares 5 tokens of that
  V z={100,101,102,103,104,2,7,8,9};
  auto zs=h.open(z);std::printf("Z match %ld hit %ld\n",(long)h.c.Match(z).tokens,(long)h.feed(zs,1,z));
  h.rows("Z",zs,1);
}
