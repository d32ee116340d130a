#include "h.h"
int main(){
  auto k=H::cfg(4,14,{{LayerKind::kSliding,8}});H h(k);
  V t1={1,2,3,4},t2={5,6,7,8};
  // E: text t1, cached without the window's block
  V xs(13);std::iota(xs.begin(),xs.end(),1);
  auto x=h.open({});h.feed(x,13,xs,false);MUST(h.c.SetTokens(x,xs));h.tab("X",x);
  auto p=h.open({});h.feed(p,4,t1,false);h.tab("P",p);
  auto g=*h.c.Fork(p,4);
  MUST(h.c.SetTokens(g,t2));   // block enters the index as t2
  MUST(h.c.SetTokens(p,t1));   // waits: shared
  MUST(h.c.Close(g));
  V a={1,2,3,4,11,12,13,14};
  h.feed(p,1,a);               // gives way to E; the window's block stays beside the block that is let go of
  h.tab("P",p);
  MUST(h.c.Close(x));
  std::printf("%s\n",h.c.Snapshot().c_str());
  // somebody takes the idle blocks
  V q(16);std::iota(q.begin(),q.end(),50);
  for(int i=0;i<3;i++){ V r=q;for(auto&t:r)t+=100*i; auto s=h.open(r);auto z=h.feed(s,16,r);(void)z;h.tab("Q",s);h.rows("Q",s,1);MUST(h.c.Close(s)); }
  h.rows("P",p,1);
}
