#include "h.h"
// the sequence itself goes back below its hit
int main(){
  auto k=H::cfg(8,40,{{LayerKind::kChunked,3}});k.reuse=Reuse::kToken;H h(k);
  V text(16);std::iota(text.begin(),text.end(),100);
  auto x=h.open({});h.feed(x,16,text,false);MUST(h.c.SetTokens(x,text));
  V y={100,101,102,103,104,105,1,2,3};
  auto ys=h.open(y);std::printf("Y hit %ld\n",(long)h.feed(ys,1,y));
  std::printf("Y min_length %ld\n",(long)h.c.GetExtent(ys)->min_length);
  MUST(h.c.Truncate(ys,5));h.feed(ys,1,{100,101,102,103,104,9});h.rows("Y",ys,1);
}
